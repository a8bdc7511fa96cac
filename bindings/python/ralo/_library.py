"""libralo by ctypes: where it is, its structs and its functions, as include/ralo.h declares them.

tests/cli/cli_python.sh compares FUNCTIONS and STRUCTS with the header.
"""

import ctypes
import ctypes.util
import os
import pathlib
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

OLDEST = (0, 1, 0)  # the version of ralo.h that this file was written for


class Step(ctypes.Structure):
    _fields_ = [
        ("step", c_int64), ("loss", c_double), ("grad_norm", c_double), ("lr", c_double), ("tokens", c_uint64),
        ("seconds", c_double), ("loss_scale", c_double), ("skipped", c_int32), ("reserved_int", c_int32),
        ("reserved", c_uint64 * 8),
    ]


class Evaluation(ctypes.Structure):
    _fields_ = [("loss", c_double), ("exact_match", c_double), ("n_problems", c_int64), ("reserved", c_uint64 * 8)]


class Data(ctypes.Structure):
    _fields_ = [
        ("n_records", c_uint64), ("n_trained", c_uint64), ("min", c_uint64), ("median", c_uint64), ("p95", c_uint64),
        ("p99", c_uint64), ("max", c_uint64), ("n_cut", c_uint64), ("n_dropped", c_uint64), ("covered", c_double),
        ("seq_len", c_int64), ("rows_per_epoch", c_int64), ("epochs", c_double), ("seq_len_auto", c_int32),
        ("reserved_int", c_int32), ("reserved", c_uint64 * 8),
    ]


class Metric(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_double)]


class ExportOptions(ctypes.Structure):
    _fields_ = [
        ("dtype", c_char_p), ("adapter", c_char_p), ("merge", c_int32), ("reserved_int", c_int32),
        ("reserved", c_uint64 * 8),
    ]


class GeneratorOptions(ctypes.Structure):
    _fields_ = [
        ("precision", c_char_p), ("max_sequences", c_int64), ("context", c_int64), ("cache_bytes", c_uint64),
        ("device_memory", c_uint64), ("threads", c_int32), ("reserved_int", c_int32), ("adapter", c_char_p), ("weights", c_char_p),
        ("reserved", c_uint64 * 6),
    ]


class Sampling(ctypes.Structure):
    _fields_ = [
        ("max_new", c_int64), ("temperature", c_double), ("top_k", c_int64), ("top_p", c_double), ("min_p", c_double),
        ("repetition_penalty", c_double), ("seed", c_uint64), ("n_completions", c_int64), ("stops", POINTER(c_char_p)),
        ("n_stops", c_size_t), ("ignore_eos", c_int32), ("chat", c_int32), ("reserved", c_uint64 * 8),
    ]


class Completion(ctypes.Structure):
    _fields_ = [
        ("text", c_void_p), ("n_bytes", c_size_t), ("tokens", POINTER(c_int32)), ("n_tokens", c_size_t),
        ("log_probability", c_double), ("stop", c_int), ("reserved_int", c_int32), ("reserved", c_uint64 * 8),
    ]


class Sample(ctypes.Structure):
    _fields_ = [
        ("step", c_int64), ("index", c_size_t), ("prompt", c_void_p), ("completion", c_void_p),
        ("prompt_bytes", c_size_t), ("completion_bytes", c_size_t), ("reward", c_double), ("advantage", c_double),
        ("stop", c_int), ("trained", c_int32), ("reserved", c_uint64 * 8),
    ]


STRUCTS = {
    "ralo_step": Step, "ralo_evaluation": Evaluation, "ralo_data": Data, "ralo_metric": Metric,
    "ralo_export_options": ExportOptions, "ralo_generator_options": GeneratorOptions, "ralo_sampling": Sampling,
    "ralo_completion": Completion, "ralo_sample": Sample,
}

LogFunction = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)
MetricsFunction = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Metric), c_size_t)
SampleFunction = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Sample))

HANDLE = c_void_p
OUT = POINTER(c_void_p)  # a handle that is made
STATUS = c_int
TEXTS = POINTER(c_char_p)
GENERATED = [TEXTS, c_size_t, POINTER(Sampling), POINTER(POINTER(Completion)), POINTER(c_size_t)]

# name: (result, arguments)
FUNCTIONS = {
    "ralo_version": (c_char_p, []),
    "ralo_error_message": (c_char_p, []),
    "ralo_set_log": (None, [LogFunction, c_void_p]),
    "ralo_free": (None, [c_void_p]),
    "ralo_settings_new": (STATUS, [OUT]),
    "ralo_settings_free": (None, [HANDLE]),
    "ralo_settings_load_file": (STATUS, [HANDLE, c_char_p]),
    "ralo_settings_set": (STATUS, [HANDLE, c_char_p, c_char_p]),
    "ralo_settings_get": (STATUS, [HANDLE, c_char_p, POINTER(c_char_p)]),
    "ralo_settings_key": (c_char_p, [c_size_t]),
    "ralo_plan_open": (STATUS, [OUT, HANDLE]),
    "ralo_plan_close": (None, [HANDLE]),
    "ralo_plan_check": (STATUS, [HANDLE]),
    "ralo_plan_bytes": (STATUS, [HANDLE, c_char_p, c_char_p, POINTER(c_uint64)]),
    "ralo_plan_text": (c_char_p, [HANDLE]),
    "ralo_plan_json": (c_char_p, [HANDLE]),
    "ralo_trainer_open": (STATUS, [OUT, HANDLE]),
    "ralo_trainer_close": (None, [HANDLE]),
    "ralo_trainer_data": (STATUS, [HANDLE, POINTER(Data)]),
    "ralo_trainer_data_text": (c_char_p, [HANDLE]),
    "ralo_trainer_on_metrics": (STATUS, [HANDLE, MetricsFunction, c_void_p]),
    "ralo_trainer_on_sample": (STATUS, [HANDLE, SampleFunction, c_void_p]),
    "ralo_trainer_step": (STATUS, [HANDLE, POINTER(Step)]),
    "ralo_trainer_steps_left": (c_int64, [HANDLE]),
    "ralo_trainer_due": (c_uint32, [HANDLE]),
    "ralo_trainer_evaluate": (STATUS, [HANDLE, POINTER(Evaluation)]),
    "ralo_trainer_metric": (STATUS, [HANDLE, c_char_p, POINTER(c_double)]),
    "ralo_trainer_save": (STATUS, [HANDLE]),
    "ralo_trainer_export": (STATUS, [HANDLE, c_char_p, c_char_p]),
    "ralo_trainer_param_hash": (STATUS, [HANDLE, POINTER(c_uint64)]),
    "ralo_trainer_plan": (HANDLE, [HANDLE]),
    "ralo_trainer_sample": (STATUS, [HANDLE]),
    "ralo_trainer_generate": (STATUS, [HANDLE] + GENERATED),
    "ralo_export": (STATUS, [c_char_p, c_char_p, POINTER(ExportOptions)]),
    "ralo_tokenizer_open": (STATUS, [OUT, c_char_p]),
    "ralo_tokenizer_close": (None, [HANDLE]),
    "ralo_tokenizer_vocab": (c_int64, [HANDLE]),
    "ralo_tokenizer_eos": (c_int32, [HANDLE]),
    "ralo_tokenizer_encode": (STATUS, [HANDLE, c_char_p, c_size_t, POINTER(POINTER(c_int32)), POINTER(c_size_t)]),
    "ralo_tokenizer_decode": (STATUS, [HANDLE, POINTER(c_int32), c_size_t, POINTER(c_void_p), POINTER(c_size_t)]),
    "ralo_generator_options_init": (None, [POINTER(GeneratorOptions)]),
    "ralo_generator_open": (STATUS, [OUT, c_char_p, POINTER(GeneratorOptions)]),
    "ralo_generator_close": (None, [HANDLE]),
    "ralo_generator_plan": (HANDLE, [HANDLE]),
    "ralo_generator_generate": (STATUS, [HANDLE] + GENERATED),
    "ralo_sampling_init": (None, [POINTER(Sampling)]),
    "ralo_completions_free": (None, [POINTER(Completion), c_size_t]),
}

WHAT_TO_DO = "build it with `make` in the project, or set RALO_LIBRARY to the path of libralo.so"


def places():
    """Where libralo may be, the best first."""
    asked = os.environ.get("RALO_LIBRARY")
    if asked:
        return [asked]  # what was asked for, or an error
    above = pathlib.Path(__file__).resolve().parents
    beside = [above[3] / "build" / "public" / "libralo.so"]  # in the project
    if len(above) > 4:
        beside.append(above[4] / "lib" / "libralo.so.0")  # PREFIX/share/ralo/python/ralo: of `make install`
    installed = ctypes.util.find_library("ralo") or "libralo.so.0"
    return [str(place) for place in beside if place.exists()] + [installed]


def load():
    """The library with the types of every function. ImportError: it is not there, or another version."""
    failures = []
    for place in places():
        try:
            library = ctypes.CDLL(place)
        except OSError as error:
            failures.append(str(error))
            continue
        return declare(library, place)
    raise ImportError("ralo: libralo.so was not found; {} ({})".format(WHAT_TO_DO, "; ".join(failures)))


def declare(library, place):
    if not hasattr(library, "ralo_version"):
        raise ImportError("ralo: {} has no ralo_version: it is not libralo; {}".format(place, WHAT_TO_DO))
    library.ralo_version.restype = c_char_p
    version = library.ralo_version().decode()
    numbers = tuple(int(n) for n in version.split("."))
    if numbers[0] != OLDEST[0] or numbers < OLDEST:
        raise ImportError("ralo: {} is version {}, this module needs {}.{}.{} or a later one of {}.*; {}".format(
            place, version, *OLDEST, OLDEST[0], WHAT_TO_DO))
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise ImportError("ralo: {} has no {}: it is older than this module; {}".format(place, name, WHAT_TO_DO))
        function.restype = result
        function.argtypes = arguments
    return library
