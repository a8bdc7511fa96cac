/* file_kind.c - what a file of data is: by the end of its name, and what it must not be: by its first bytes. */
#include "data/file_kind.h"
#include "data/source.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* Does the name, without .gz or .zst, end like this? In any case of letters: Excel writes TABLE.CSV. */
static bool ends_in(const char *path, const char *ending) {
    size_t n = packing_name_bytes(path), n_ending = strlen(ending);
    return n >= n_ending && strncasecmp(path + n - n_ending, ending, n_ending) == 0;
}

data_format data_format_of(const char *path, data_format f) {
    static const struct {
        const char *ending;
        data_format format;
    } endings[] = {{".jsonl", FORMAT_JSONL}, {".json", FORMAT_JSONL}, {".ndjson", FORMAT_JSONL},
                   {".csv", FORMAT_CSV},     {".tsv", FORMAT_TSV},    {".tab", FORMAT_TSV},
                   {".bin", FORMAT_TOKENS},  {".npy", FORMAT_TOKENS}};
    if (f != FORMAT_AUTO) return f;
    for (size_t i = 0; i < ARRAY_LENGTH(endings); i++)
        if (ends_in(path, endings[i].ending)) return endings[i].format;
    return FORMAT_TEXT;
}

static bool has_records(data_format f) { return f != FORMAT_TEXT && f != FORMAT_TOKENS; }

bool data_is_records(const char *path) { return has_records(data_format_of(path, FORMAT_AUTO)); }

data_format data_file_format(const data_options *o, const char *path) {
    return data_format_of(path, o->records.format);
}

bool data_is_record_file(const data_options *o, const char *path) { return has_records(data_file_format(o, path)); }

bool data_is_data_name(const char *name) {
    static const char *const ends[] = {".txt", ".text", ".md"};
    if (name[0] == '.') return false;
    for (size_t i = 0; i < ARRAY_LENGTH(ends); i++)
        if (ends_in(name, ends[i])) return true;
    return data_is_records(name);
}

/* ---- what is no data --------------------------------------------------------------------------------------------- */

#define TO_JSONL(read)                                                             \
    "write its rows as JSON Lines: python3 -c \"import pandas, sys; [pandas." read \
    "(f).to_json(f + '.jsonl', orient='records', lines=True) for f in sys.argv[1:]]\" FILE"
#define IS_MODEL "a model is no data: name its directory with --model DIR, and text to train on with --data TEXT"

enum { LOOKED_AT = 512 };

typedef struct foreign_kind {
    const char *magic, *name, *advice;
    size_t n_bytes, at;
} foreign_kind;

/* clang-format off */
static const foreign_kind kinds[] = {
    {"\xfd" "7zXZ",        "xz",         "unpack it (xz -dk FILE)", 5, 0},
    {"1AY&SY",             "bzip2",      "unpack it (bzip2 -dk FILE)", 6, 4},
    {"7z\xbc\xaf\x27\x1c", "7z",         "unpack it (7z x FILE)", 6, 0},
    {"PK\x03\x04",         "zip",        "unpack it (unzip FILE); if it is a checkpoint of PyTorch (.pt, .bin): " IS_MODEL, 4, 0},
    {"ustar",              "tar",        "unpack it (tar -xf FILE)", 5, 257},
    {"PAR1",               "Parquet",    TO_JSONL("read_parquet"), 4, 0},
    {"ARROW1",             "Arrow",      TO_JSONL("read_feather"), 6, 0},
    {"\xff\xff\xff\xff",   "an Arrow stream", "write its rows as JSON Lines: python3 -c \"import pyarrow, sys; "
        "[pyarrow.ipc.open_stream(f).read_pandas().to_json(f + '.jsonl', orient='records', lines=True) for f in sys.argv[1:]]\" FILE", 4, 0},
    {"%PDF-",              "PDF",        "write its text (pdftotext FILE FILE.txt)", 5, 0},
    {"GGUF",               "GGUF",       IS_MODEL, 4, 0},
    {"\0{\"",              "safetensors", IS_MODEL, 3, 7}, /* behind the length of its header */
    {"\x80\x02}",          "pickle of Python", IS_MODEL, 3, 0},
    {"\x80\x02\x8a",       "pickle of Python", IS_MODEL, 3, 0},
    {"\x80\x04\x95",       "pickle of Python", "write its text or its records as JSON Lines", 3, 0},
    {"\x80\x05\x95",       "pickle of Python", "write its text or its records as JSON Lines", 3, 0},
    {"\x93NUMPY",          "NumPy",      "tokens in it are read under the name FILE.npy; write text or records otherwise", 6, 0},
    {"SQLite format 3",    "SQLite",     "write its rows (sqlite3 -header -csv FILE 'SELECT ...' >FILE.csv)", 15, 0},
    {"\x89HDF\r\n",        "HDF5",       "write its text or its records as JSON Lines", 6, 0},
    {"\x89PNG",            "PNG",        "a picture has no text", 4, 0},
    {"\xff\xd8\xff",       "JPEG",       "a picture has no text", 3, 0},
    {"\xd0\xcf\x11\xe0",   "Word or Excel (old)", "save it as text, or as CSV", 4, 0},
    {"\x7f" "ELF",         "a program",  "name text to train on", 4, 0},
    {"ralotok\n",          "ralo's token cache", "name the text it was made of", 8, 0},
    {"\xff\xfe",           "UTF-16 text", "convert it (iconv -f UTF-16 -t UTF-8 FILE >FILE.utf8)", 2, 0},
    {"\xfe\xff",           "UTF-16 text", "convert it (iconv -f UTF-16 -t UTF-8 FILE >FILE.utf8)", 2, 0},
};
/* clang-format on */

/* Text has none of these: what only looks like a magic may be prose that begins with the word. */
static bool has_control(span head) {
    for (size_t i = 0; i < head.length; i++)
        if ((unsigned char)head.text[i] < ' ' && !memchr("\t\n\v\f\r\x1b", head.text[i], 6)) return true;
    return false;
}

static bool is_kind(const foreign_kind *k, span head) {
    if (head.length < k->at + k->n_bytes || memcmp(head.text + k->at, k->magic, k->n_bytes) != 0) return false;
    bool is_word = k->magic[0] >= '0' && k->magic[0] <= 'z'; /* GGUF, PAR1, ARROW1, ustar ... */
    return !is_word || has_control(head);
}

/* The advice with the file in the place of FILE: the command can be copied. */
static void write_advice(const char *advice, const char *path, strbuf *out) {
    for (const char *at = advice, *next; *at; at = next + strlen("FILE")) {
        next = strstr(at, "FILE");
        strbuf_add_bytes(out, at, next ? (size_t)(next - at) : strlen(at));
        if (!next) return;
        strbuf_add_word(out, path);
    }
}

void data_name_columnar(const char *pattern, const char *name, strbuf *out) {
    const char *advice = str_ends_with(name, ".parquet")                                    ? TO_JSONL("read_parquet")
                         : str_ends_with(name, ".arrow") || str_ends_with(name, ".feather") ? TO_JSONL("read_feather")
                                                                                            : NULL;
    if (!advice) return;
    const char *place = strstr(advice, "FILE");
    strbuf_add_bytes(out, advice, (size_t)(place - advice));
    strbuf_add(out, pattern); /* not quoted: it is for the shell */
}

status data_refuse_kind(reader *in, const record_options *o) {
    span head;
    TRY(reader_peek(in, LOOKED_AT, &head));
    head.length = MIN(head.length, (size_t)LOOKED_AT);
    if (o->format == FORMAT_TEXT) return OK;
    bool is_text = data_format_of(in->path, o->format) == FORMAT_TEXT;
    bool are_ids = data_format_of(in->path, o->format) == FORMAT_TOKENS; /* may begin like almost anything */
    if (o->format == FORMAT_TOKENS) return OK;
    for (size_t i = 0; i < ARRAY_LENGTH(kinds); i++) {
        if (!is_kind(&kinds[i], head) || (are_ids && (kinds[i].n_bytes < 3 || kinds[i].magic[0] == '\x93'))) continue;
        strbuf advice;
        strbuf_init(&advice);
        write_advice(kinds[i].advice, in->path, &advice);
        status rc = ERR(ERR_INPUT, "%s: found a file of %s, expected text, JSON Lines or a table (CSV); %s%s", in->path,
                        kinds[i].name, advice.text,
                        is_text   ? "; data.format=text trains on its bytes as they are"
                        : are_ids ? "; data.format=tokens reads it as token ids"
                                  : "");
        strbuf_fini(&advice);
        return rc;
    }
    if (is_text && memchr(head.text, 0, head.length))
        return ERR(
            ERR_INPUT,
            "%s: found zero bytes among its first %zu, as in a binary file, expected text, JSON Lines or a table "
            "(CSV); data.format=text trains on its bytes as they are",
            in->path, head.length);
    return OK;
}

status data_read_text(const char *path, size_t max_bytes, char **out, size_t *n_bytes) {
    reader in;
    span text = {0};
    if (data_format_of(path, FORMAT_AUTO) == FORMAT_TOKENS)
        return ERR(ERR_INPUT, "%s: found token ids, as its name says, expected text or JSON Lines", path);
    TRY(reader_open(&in, path));
    status rc = data_refuse_kind(&in, &(record_options){0});
    if (rc == OK) rc = reader_peek(&in, max_bytes + 1, &text);
    if (rc == OK && text.length > max_bytes)
        rc = ERR(ERR_INPUT, "%s: found more than %zu bytes of text, expected at most that", path, max_bytes);
    if (rc == OK) {
        *out = mem_alloc(text.length + 1);
        memcpy(*out, text.text, text.length);
        *n_bytes = text.length;
    }
    reader_close(&in);
    return rc;
}

/* ---- what is not there ------------------------------------------------------------------------------------------- */

/* "tatsu-lab/alpaca": one slash, no ending of a file. */
static bool is_hub_name(const char *path) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *slash = strchr(path, '/');
    if (!slash || slash == path || !slash[1] || path[0] == '.') return false;
    bool is_plain = strspn(path, plain) == (size_t)(slash - path) && !slash[1 + strspn(slash + 1, plain)];
    return is_plain && !data_is_data_name(slash + 1) && data_format_of(path, FORMAT_AUTO) == FORMAT_TEXT;
}

status data_check_file(const char *setting, const char *path) {
    struct stat s;
    if (stat(path, &s) == 0) return OK;
    int why = errno;
    char cwd[PATH_MAX]; /* a run is often continued from another directory than it began in */
    const char *here = path[0] != '/' ? getcwd(cwd, sizeof cwd) : NULL;
    if (is_hub_name(path))
        return ERR(ERR_IO,
                   "%s: found no file %s (%s), expected files; a data set of the hub becomes one by: python3 -c \"from "
                   "datasets "
                   "import load_dataset; load_dataset('%s', split='train').to_json('%s.jsonl')\"",
                   setting, path, strerror(why), path, strchr(path, '/') + 1);
    return ERR(
        ERR_IO,
        "%s: found no file %s (%s), expected builtin:... or existing files, separated by commas (one in a name is "
        "\\,)%s%s; download a data set of a hub first, as JSON Lines",
        setting, path, strerror(why), here ? ", looked for from " : "", here ? here : "");
}
