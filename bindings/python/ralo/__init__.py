"""ralo - train language models that do not fit in memory, from Python.

    import ralo
    print(ralo.plan(preset="gpt2", data="text.txt")["answer"])
    result = ralo.train(preset="gpt2", data="text.txt", train__steps=100, on_step=lambda m: print(m["train/loss"]))
    print(ralo.generate("out", "Once upon a time", max_new=32)[0]["text"])

Settings are those of `ralo help settings`, given as a YAML or JSON file, as a dict ({"train.steps": 100} or {"train": {"steps": 100}}) and
as keywords: train__steps=100 is train.steps, and model, data, lr, epochs, lora, out and preset are the flags of `ralo train`. What comes later
wins; None leaves a setting as it is. The module needs libralo.so, Python 3.9 and nothing else.
"""

import contextlib
import ctypes
import json
import math
import os
import signal
import threading

from . import _library
from ._library import load as _load

__all__ = ["Error", "InputError", "FitError", "Settings", "Trainer", "Generator", "Tokenizer", "plan", "train", "generate", "export",
           "version"]

_lib = _load()

STOPS = ("eos", "string", "length")  # by ralo_stop
LEVELS = {1: "info", 2: "warning", 3: "error"}
DUE = {1: "evaluation", 2: "samples", 4: "save", 8: "end"}  # by ralo_due
# As the flags of `ralo train`.
SHORT = {"model": "model.path", "data": "data.source", "lr": "train.lr", "epochs": "train.epochs", "lora": "model.lora.rank", "out": "run.dir",
         "preset": "model.preset"}


def version():
    """The version of the library."""
    return _lib.ralo_version().decode()


# ---- errors ---------------------------------------------------------------------------------------------------------------


class Error(RuntimeError):
    """A call failed; the text says what was found, what was expected and what to do. status: as in ralo.h."""

    status = 1


class InputError(Error, ValueError):
    """Settings, arguments or what stands in a file were wrong."""


class FitError(Error, MemoryError):
    """It does not fit; the text names the smallest change that would."""


def _error(status):
    kind = {2: InputError, 4: FitError}.get(status, Error)
    error = kind(_text(_lib.ralo_error_message()))
    error.status = status
    return error


def _must(status):
    if status != 0:
        raise _error(status)


def _text(data):
    """Bytes need not be UTF-8: a byte tokenizer gives any."""
    return data.decode("utf-8", "replace")


def _as_bytes(text, what):
    """bytes(8) would be eight NULs, and ctypes takes 8 as an address: neither is a text."""
    if isinstance(text, os.PathLike):
        return os.fsencode(text)
    if isinstance(text, str):
        return text.encode("utf-8", "surrogateescape")
    if not isinstance(text, (bytes, bytearray, memoryview)):
        raise TypeError("ralo: {}found {!r}, expected a text".format(what + ": " if what else "", text))
    return bytes(text)


def _bytes(text, what=""):
    data = _as_bytes(text, what)
    if b"\0" in data:
        raise ValueError("ralo: found a NUL byte in {!r}".format(text))
    return data


def _fill(struct, given):
    """Fields of a struct; None leaves one as it is. ctypes keeps the low bits of a number that is too large."""
    for name, value in given.items():
        if value is None:
            continue
        if dict(struct._fields_)[name] is ctypes.c_char_p:
            value = _bytes(value, name)
        setattr(struct, name, value)
        if isinstance(value, int) and getattr(struct, name) != value:
            raise InputError("ralo: {}: found {}, which its C type does not hold; expected a smaller number, 0 or more".format(name, value))


# ---- callbacks --------------------------------------------------------------------------------------------------------------


class _Raised:
    """An exception cannot pass through C: it is kept, and raised when the call has returned. The first counts."""

    def __init__(self):
        self.error = None

    def keep(self, error):
        if self.error is None:
            self.error = error

    def check(self):
        error, self.error = self.error, None
        if error is not None:
            raise error


class _Deferred:
    """Ctrl-C while a call runs is handled when it has returned: in a callback from C the exception would be lost."""

    def __enter__(self):
        self.arrived = []
        self.before = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
        if callable(self.before):
            signal.signal(signal.SIGINT, lambda number, frame: self.arrived.append((number, frame)))

    def __exit__(self, *_):
        if callable(self.before):
            signal.signal(signal.SIGINT, self.before)
            if self.arrived:
                self.before(*self.arrived[0])


class _Log:
    """on_log(level, line) hears the library while this is open. One function per process hears it, the last that was given."""

    heard_by = []  # the functions that are open, the last hears

    def __init__(self, function, raised):
        def forward(_, level, line):
            try:
                function(LEVELS.get(level, "info"), _text(line))
            except BaseException as error:  # also KeyboardInterrupt
                raised.keep(error)

        self.function = _library.LogFunction(forward) if function else None

    def __enter__(self):
        if self.function:
            _Log.heard_by.append(self.function)
            _lib.ralo_set_log(self.function, None)

    def __exit__(self, *_):
        if self.function:
            _Log.heard_by.remove(self.function)
            _lib.ralo_set_log(_Log.heard_by[-1] if _Log.heard_by else _library.LogFunction(), None)


# ---- handles -------------------------------------------------------------------------------------------------------------------


class _Handle:
    """What the library opened, and `_end` closes: by close(), at the end of a `with`, or with the object."""

    _handle = None
    _lock = None  # of _hold
    _in_call = False

    def _hold(self, function, *arguments):
        """Opens with a function of the library. Ctrl-C while it runs closes what it opened."""
        self._lock = threading.RLock()
        self._handle = ctypes.c_void_p()
        try:
            _must(function(ctypes.byref(self._handle), *arguments))
        except BaseException:
            self.close()
            raise

    def _open(self):
        if not self._handle:
            raise Error("ralo: this {} is closed".format(type(self).__name__))
        return self._handle

    def _refuse_callback(self):
        if self._in_call:
            raise Error("ralo: this {} is in a call, and a callback of that call may not use it; use it after the call".format(type(self).__name__))

    @contextlib.contextmanager
    def _call_alone(self):
        """The handle for one call. A handle is one thread's at a time, and Python's threads run while C does: the others wait."""
        with self._lock:
            self._refuse_callback()
            self._in_call = True
            try:
                yield self._open()
            finally:
                self._in_call = False

    def close(self):
        if not self._handle:
            self._handle = None
            return
        with self._lock:
            self._refuse_callback()
            handle, self._handle = self._handle, None
            if handle:
                type(self)._end(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce_ex__(self, protocol):
        raise TypeError("ralo: a {} cannot be copied or sent to another process; open one there".format(type(self).__name__))

    def __del__(self):
        self.close()


# ---- settings -----------------------------------------------------------------------------------------------------------------


def _value(x):
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, (list, tuple)):
        return "[" + ", ".join(_value(y) for y in x) + "]"
    if isinstance(x, (os.PathLike, bytes, bytearray)):
        return os.fsdecode(bytes(x) if isinstance(x, bytearray) else x)
    return str(x)


class Settings(_Handle):
    """Every setting at its default, then what is given: see the module."""

    _end = _lib.ralo_settings_free

    def __init__(self, config=None, **settings):
        self._hold(_lib.ralo_settings_new)
        if isinstance(config, dict):
            self._add(config, "")
        elif config is not None:
            self.load(config)
        self._set_keywords(settings)

    def _set_keywords(self, settings):
        for key, value in settings.items():
            self._set_short(SHORT.get(key, key.replace("__", ".")), value)

    def _set_short(self, key, value):
        if key == "model.lora.rank" and isinstance(value, bool):
            value = 16 if value else None  # as --lora
        self.set(key, value)

    def _add(self, config, before):
        for key, value in config.items():
            if isinstance(value, dict) and not self._is_setting(before + key):
                self._add(value, before + key + ".")
            elif isinstance(value, dict):
                self.set(before + key, json.dumps(value))
            else:
                self._set_short(before + SHORT.get(key, key) if not before else before + key, value)

    @staticmethod
    def _is_setting(key):
        return key in Settings.keys()

    @staticmethod
    def keys():
        """The keys of all settings."""
        keys = []
        while True:
            key = _lib.ralo_settings_key(len(keys))
            if key is None:
                return keys
            keys.append(key.decode())

    def load(self, path):
        """A YAML or JSON file, over what was set before."""
        _must(_lib.ralo_settings_load_file(self._open(), _bytes(path)))

    def set(self, key, value):
        """As --set KEY=VALUE; None changes nothing."""
        if value is not None:
            _must(_lib.ralo_settings_set(self._open(), _bytes(key), _bytes(_value(value))))

    def get(self, key):
        """The value as text."""
        out = ctypes.c_char_p()
        _must(_lib.ralo_settings_get(self._open(), _bytes(key), ctypes.byref(out)))
        return _text(out.value)

    def whole(self, key):
        """A count that may be none."""
        text = self.get(key)
        return 0 if text == "none" else int(text)


def _settings(config, settings):
    if isinstance(config, Settings):
        config._set_keywords(settings)
        return config
    return Settings(config, **settings)


# ---- plan ---------------------------------------------------------------------------------------------------------------------


def _plan_dict(handle):
    out = json.loads(_lib.ralo_plan_json(handle))
    out["text"] = _text(_lib.ralo_plan_text(handle))
    return out


def plan(config=None, *, on_log=None, **settings):
    """What `ralo plan --json` prints, as a dict, and the plan in words under "text". Nothing is allocated. A plan that does not fit has
    "fits": False, and says in "answer" what would."""
    raised = _Raised()
    handle = ctypes.c_void_p()
    try:
        with _Log(on_log, raised):
            s = _settings(config, settings)
            status = _lib.ralo_plan_open(ctypes.byref(handle), s._open())
        raised.check()
        _must(status)
        return _plan_dict(handle)
    finally:
        _lib.ralo_plan_close(handle)


# ---- completions ----------------------------------------------------------------------------------------------------------------


def _sampling(max_new, temperature, top_k, top_p, min_p, repetition_penalty, seed, n, stop, ignore_eos):
    s = _library.Sampling()
    _lib.ralo_sampling_init(ctypes.byref(s))
    given = {"max_new": max_new, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
             "repetition_penalty": repetition_penalty, "seed": seed, "n_completions": n}
    _fill(s, given)
    stops = [_bytes(text, "stop") for text in ([stop] if isinstance(stop, str) else stop or [])]
    s.stops = (ctypes.c_char_p * len(stops))(*stops) if stops else None
    s.n_stops = len(stops)
    s.ignore_eos = bool(ignore_eos)
    return s


def _is_conversation(prompt):
    return isinstance(prompt, (list, tuple)) and len(prompt) > 0 and all(isinstance(turn, dict) for turn in prompt)


def _complete(function, handle, prompts, sampling, chat):
    if isinstance(prompts, dict):  # iterating it would take its keys for prompts
        raise TypeError("ralo: prompts: found {!r}, expected a text or a list of texts; a conversation is a list of turns, [{{...}}]".format(prompts))
    if isinstance(prompts, (bytes, bytearray, memoryview)) or not hasattr(prompts, "__iter__"):
        raise TypeError("ralo: prompts: found {!r}, expected a text or a list of texts".format(prompts))
    prompts = [prompts] if isinstance(prompts, str) or _is_conversation(prompts) else list(prompts)
    if not chat and any(map(_is_conversation, prompts)):
        raise InputError("ralo: found a conversation as a prompt, expected a text; give chat=True")
    texts = list(prompts)
    if chat:
        texts = [json.dumps({"messages": [{"role": "user", "content": p}] if isinstance(p, str) else list(p)}) for p in prompts]
        sampling.chat = 2  # RALO_CHAT_RECORD
    texts = (ctypes.c_char_p * max(len(prompts), 1))(*[_bytes(text, "prompt") for text in texts])
    out, n = ctypes.POINTER(_library.Completion)(), ctypes.c_size_t()
    _must(function(handle, texts, len(prompts), ctypes.byref(sampling), ctypes.byref(out), ctypes.byref(n)))
    try:
        each = n.value // len(prompts)
        return [{"prompt": prompts[i // each], "text": _text(ctypes.string_at(out[i].text, out[i].n_bytes)),
                 "tokens": out[i].tokens[:out[i].n_tokens], "log_probability": out[i].log_probability, "stop": STOPS[out[i].stop]}
                for i in range(n.value)]
    finally:
        _lib.ralo_completions_free(out, n)


class Generator(_Handle):
    """A model that completes texts. source: a Hugging Face directory, a run or a checkpoint; adapter: a PEFT directory or a run over it;
    weights: "int8", "fp8" or "nf4", linear layers in fewer bits."""

    _end = _lib.ralo_generator_close

    def __init__(self, source, *, adapter=None, precision=None, weights=None, max_sequences=None, context=None, cache_bytes=None,
                 device_memory=None, threads=None):
        o = _library.GeneratorOptions()
        _lib.ralo_generator_options_init(ctypes.byref(o))
        given = {"precision": precision, "weights": weights, "max_sequences": max_sequences, "context": context, "cache_bytes": cache_bytes,
                 "device_memory": device_memory, "threads": threads, "adapter": adapter}
        _fill(o, given)
        self._hold(_lib.ralo_generator_open, _bytes(source), ctypes.byref(o))

    def generate(self, prompts, *, max_new=None, temperature=None, top_k=None, top_p=None, min_p=None, repetition_penalty=None, seed=None,
                 n=None, stop=None, ignore_eos=False, chat=False):
        """A list of dicts (prompt, text, tokens, log_probability, stop), n of each prompt together. Greedy and 128 tokens unless said.
        chat=True: a prompt is a turn of the user, or a conversation, [{"role": ..., "content": ...}, ...], in the chat format of the training."""
        how = _sampling(max_new, temperature, top_k, top_p, min_p, repetition_penalty, seed, n, stop, ignore_eos)
        with self._call_alone() as handle:
            return _complete(_lib.ralo_generator_generate, handle, prompts, how, chat)

    def plan(self):
        return _plan_dict(_lib.ralo_generator_plan(self._open()))


def generate(source, prompts, *, adapter=None, precision=None, weights=None, max_sequences=None, context=None, threads=None, **sampling):
    """Opens a Generator, completes the prompts (a text or a list of texts; with chat=True also conversations) and closes it."""
    with Generator(source, adapter=adapter, precision=precision, weights=weights, max_sequences=max_sequences, context=context, threads=threads) as g:
        return g.generate(prompts, **sampling)


# ---- training -------------------------------------------------------------------------------------------------------------------


class Trainer(_Handle):
    """A training run, step by step; the loop is yours. Numbers are dicts with the keys of metrics.jsonl."""

    _end = _lib.ralo_trainer_close

    def __init__(self, config=None, *, on_log=None, on_sample=None, **settings):
        self._raised = _Raised()
        self._log = _Log(on_log, self._raised)
        self._metrics = {}
        self._on_sample = on_sample
        self._samples = []
        self.saved_step = None  # the last that this trainer saved
        with self._log:
            self._settings = _settings(config, settings)
            self._hold(_lib.ralo_trainer_open, self._settings._open())
        self._functions = (_library.MetricsFunction(self._hear_metrics), _library.SampleFunction(self._hear_sample))
        _must(_lib.ralo_trainer_on_metrics(self._handle, self._functions[0], None))
        _must(_lib.ralo_trainer_on_sample(self._handle, self._functions[1], None))
        self._check()

    def _hear_metrics(self, _, metrics, n):
        try:
            self._metrics = {metrics[i].name.decode(): metrics[i].value for i in range(n)}
            for key in ("step", "tokens", "memory/device_bytes", "val/problems"):
                if math.isfinite(self._metrics.get(key, math.nan)):
                    self._metrics[key] = int(self._metrics[key])
        except BaseException as error:
            self._raised.keep(error)

    def _hear_sample(self, _, sample):
        try:
            s = sample[0]
            one = {"step": s.step, "prompt": _text(ctypes.string_at(s.prompt, s.prompt_bytes)),
                   "completion": _text(ctypes.string_at(s.completion, s.completion_bytes)), "stop": STOPS[s.stop]}
            if s.trained:
                one.update(reward=s.reward, advantage=s.advantage)
            else:
                self._samples.append(one)
            if self._on_sample:
                self._on_sample(one)
        except BaseException as error:
            self._raised.keep(error)

    def _check(self):
        try:
            self._raised.check()
        except BaseException:
            self.close()
            raise

    def _call(self, function, *arguments):
        """Returns the numbers that the metrics callback got last."""
        with self._call_alone() as handle:
            with _Deferred(), self._log:
                status = function(handle, *arguments)
            _must(status)
            self._raised.check()
            return self._metrics

    @property
    def steps_left(self):
        return _lib.ralo_trainer_steps_left(self._open())

    @property
    def steps_made(self):
        """The last step of this trainer, counted from the start of the run; 0 before it made one."""
        out = ctypes.c_double()
        return int(out.value) if _lib.ralo_trainer_metric(self._open(), b"step", ctypes.byref(out)) == 0 else 0

    @property
    def due(self):
        """What `ralo train` would do after this step, as a set of "evaluation", "samples", "save" and "end" (all steps, or train.patience)."""
        flags = _lib.ralo_trainer_due(self._open())
        return {word for flag, word in DUE.items() if flags & flag}

    @property
    def data(self):
        """The data: records, tokens of a record (min, median, p95, p99, max), the share that a row holds; the same in words is "text"."""
        d = _library.Data()
        _must(_lib.ralo_trainer_data(self._open(), ctypes.byref(d)))
        out = {name: getattr(d, name) for name, *_ in d._fields_ if not name.startswith("reserved")}
        out["covered"] = None if math.isnan(d.covered) else d.covered
        out["seq_len_auto"] = bool(d.seq_len_auto)
        out["text"] = _text(_lib.ralo_trainer_data_text(self._handle))
        return out

    @property
    def param_hash(self):
        """Of every bit of every parameter, as `ralo train` prints it."""
        out = ctypes.c_uint64()
        self._call(_lib.ralo_trainer_param_hash, ctypes.byref(out))
        return "{:016x}".format(out.value)

    def plan(self):
        return _plan_dict(_lib.ralo_trainer_plan(self._open()))

    def step(self):
        """One optimizer step; its numbers."""
        return self._call(_lib.ralo_trainer_step, None)

    def evaluate(self):
        """Held-out rows and problems; None where nothing is held out."""
        try:
            return self._call(_lib.ralo_trainer_evaluate, ctypes.byref(_library.Evaluation()))
        except InputError as error:
            if "nothing is held out" in str(error):
                return None
            raise

    def sample(self):
        """Completions of train.samples prompts with the parameters as they are; needs train.sample_every."""
        self._samples = []
        self._call(_lib.ralo_trainer_sample)
        return self._samples

    def generate(self, prompts, *, max_new=None, temperature=None, top_k=None, top_p=None, min_p=None, repetition_penalty=None, seed=None,
                 n=None, stop=None, ignore_eos=False, chat=False):
        """As Generator.generate, with the parameters as they are; needs train.sample_every."""
        how = _sampling(max_new, temperature, top_k, top_p, min_p, repetition_penalty, seed, n, stop, ignore_eos)
        with self._call_alone() as handle:
            return _complete(_lib.ralo_trainer_generate, handle, prompts, how, chat)

    def save(self):
        """A checkpoint in run.dir; returns when it is whole on disk."""
        self._call(_lib.ralo_trainer_save)
        self.saved_step = self.steps_made

    def export(self, directory, dtype=None):
        """The model as transformers loads it; with LoRA the adapter as PEFT does."""
        self._call(_lib.ralo_trainer_export, _bytes(directory), None if dtype is None else _bytes(dtype))


class _Stop(Exception):
    """A callback returned False."""


def _told(function, numbers):
    if function and function(numbers) is False:
        raise _Stop


def _loop(t, result, on_step, on_eval):
    """As `ralo train`: evaluations, samples and checkpoints between the steps."""
    while "end" not in t.due and t.steps_left > 0:
        numbers = t.step()
        result["metrics"].append(numbers)
        _told(on_step, numbers)
        due = t.due
        if "evaluation" in due:
            result["evaluations"].append(t.evaluate())
            _told(on_eval, result["evaluations"][-1])
        if "samples" in due:
            result["samples"] += t.sample()
        if "save" in due:
            t.save()
    if t.steps_left > 0:
        result["stopped"] = "patience"


def _keep_last(t, result):
    """Ctrl-C in a step or an evaluation comes when it is done: its numbers are those of the run, but nobody was given them."""
    numbers = t._metrics
    kind = result["metrics" if "train/learning_rate" in numbers else "evaluations"]
    if numbers and not any(known is numbers for known in kind[-1:]):
        kind.append(numbers)


def _finish(t, settings, result, on_eval, start):
    """The last checkpoint is written also after a stop; a run that was told to stop is not whole, so it is not exported. start: the step
    that was resumed, of which there is a checkpoint."""
    is_whole = result["stopped"] in (None, "patience")
    if result["run"] and settings.get("train.task") == "rloo":
        while t.steps_left > 0 and t.steps_made % settings.whole("rl.updates"):  # no checkpoint between two updates of a rollout
            result["metrics"].append(t.step())
    result["steps"] = t.steps_made or start
    if result["run"] and result["steps"] not in (t.saved_step, start or None) and (settings.get("run.save_last") == "true" or not is_whole):
        t.save()
    if is_whole:
        last = t.evaluate() if result["stopped"] is None else None  # patience ends with an evaluation
        if last is not None:
            result["steps"] = last["step"]
            result["evaluations"].append(last)
            if on_eval:
                on_eval(last)
        export = settings.get("run.export")
        if export != "none":
            if t.steps_made or not start or not os.path.exists(export):  # else the run was done before, as a warning has said
                t.export(export)
            result["export"] = export
    result["param_hash"] = t.param_hash


def train(config=None, *, on_step=None, on_eval=None, on_sample=None, on_log=None, **settings):
    """Trains as `ralo train` does and returns a dict: steps, metrics (one dict per step), evaluations, samples, data, plan, param_hash,
    run (run.dir), export (run.export) and stopped: None, "patience" (train.patience), "callback" or "interrupt".

    on_step(numbers) and on_eval(numbers) get the keys of metrics.jsonl; False ends the run after that step. on_sample(sample) hears
    completions, of train.task rloo also those that are trained on, with reward and advantage; on_log(level, line) what the command prints:
    warnings, the data. Ctrl-C, or a notebook's stop, also ends the run after the step (with train.task rloo after the last update of the
    rollout), returns what there is and leaves a checkpoint where run.dir is given; a second one, and one before the first step, raises. An
    exception of a callback is raised."""
    s = _settings(config, settings)
    directory = s.get("run.dir")
    result = {"steps": 0, "metrics": [], "evaluations": [], "samples": [], "stopped": None, "run": None if directory == "auto" else directory,
              "export": None}
    with Trainer(s, on_log=on_log, on_sample=on_sample) as t:
        result["data"] = t.data
        result["plan"] = t.plan()
        start = result["plan"]["run"]["steps"] - t.steps_left
        try:
            _loop(t, result, on_step, on_eval)
        except _Stop:
            result["stopped"] = "callback"
        except KeyboardInterrupt:
            result["stopped"] = "interrupt"
            _keep_last(t, result)
        _finish(t, s, result, on_eval, start)
    return result


def export(source, directory, *, dtype=None, adapter=None, merge=False):
    """`ralo export`: a run or checkpoint as a directory of transformers or PEFT; merge: adapters merged into the model. A name that ends in
    .gguf is one file for llama.cpp, in f16."""
    o = _library.ExportOptions(dtype=None if dtype is None else _bytes(dtype), adapter=None if adapter is None else _bytes(adapter),
                               merge=bool(merge))
    _must(_lib.ralo_export(_bytes(source), _bytes(directory), ctypes.byref(o)))


# ---- tokenizer ------------------------------------------------------------------------------------------------------------------


class Tokenizer(_Handle):
    """ "byte", a tokenizer.json of Hugging Face, or a directory that holds one."""

    _end = _lib.ralo_tokenizer_close

    def __init__(self, name):
        self._hold(_lib.ralo_tokenizer_open, _bytes(name))

    @property
    def vocab(self):
        return _lib.ralo_tokenizer_vocab(self._open())

    @property
    def eos(self):
        """The token that ends a text; None: there is none."""
        eos = _lib.ralo_tokenizer_eos(self._open())
        return None if eos < 0 else eos

    def encode(self, text):
        data = text.encode() if isinstance(text, str) else _as_bytes(text, "")
        tokens, n = ctypes.POINTER(ctypes.c_int32)(), ctypes.c_size_t()
        _must(_lib.ralo_tokenizer_encode(self._open(), data, len(data), ctypes.byref(tokens), ctypes.byref(n)))
        try:
            return tokens[:n.value]
        finally:
            _lib.ralo_free(tokens)

    def decode(self, tokens):
        tokens = list(tokens)
        for i, token in enumerate(tokens):
            if isinstance(token, int) and not -2**31 <= token < 2**31:
                raise InputError("ralo: token {} is {}, expected an id of the vocabulary".format(i + 1, token))
        text, n = ctypes.c_void_p(), ctypes.c_size_t()
        ids = (ctypes.c_int32 * max(len(tokens), 1))(*tokens)
        _must(_lib.ralo_tokenizer_decode(self._open(), ids, len(tokens), ctypes.byref(text), ctypes.byref(n)))
        try:
            return _text(ctypes.string_at(text, n.value))
        finally:
            _lib.ralo_free(text)

