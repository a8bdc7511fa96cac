/* lexer.c - the source of a template as tokens.
 *
 * Text between tags is data. White space around tags is cut as trim_blocks and lstrip_blocks do: one line break behind a
 * block or comment goes, and so does the indentation before one that begins its line; `-` takes all white space of its
 * side, `+` keeps it. Line breaks of all kinds become \n, and the last one of the source goes.
 * Strings lose their escapes here, with the rules of Python's unicode-escape codec. */
#include "jinja/ast.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

typedef struct lexer {
    const char *s;
    size_t n, at;
    const char *name;
    arena *memory;
    token_list *out;
    int line;
    bool line_starting;
    char *open; /* brackets that are open in a tag */
    size_t n_open, open_capacity;
} lexer;

#define LEX_ERR(x, ...) lex_error((x), __LINE__, __VA_ARGS__)
static status __attribute__((format(printf, 3, 4))) lex_error(const lexer *x, int at, const char *fmt, ...) {
    char message[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return error_set(ERR_INPUT, __FILE__, at, "lex", "%s:%d: %s", x->name, x->line, message);
}

static token *push(lexer *x, token_kind kind) {
    token_list *l = x->out;
    l->items = array_grow(l->items, &l->capacity, l->n + 1, sizeof *l->items);
    token *t = &l->items[l->n++];
    *t = (token){.kind = (uint8_t)kind, .line = x->line};
    return t;
}

/* ---- characters ----------------------------------------------------------------------------------------------------- */

static bool is_space_char(int32_t c) {
    return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static int32_t decode(const char *s, size_t n, size_t *length) {
    utf8proc_int32_t c;
    utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)MIN(n, (size_t)4), &c);
    *length = k > 0 ? (size_t)k : 1;
    return k > 0 ? c : (unsigned char)*s;
}

static size_t space_length(const char *s, size_t n) {
    size_t length;
    return n && is_space_char(decode(s, n, &length)) ? length : 0;
}

static size_t skip_space(const lexer *x, size_t at) {
    for (size_t k; (k = space_length(x->s + at, x->n - at)) > 0;) at += k;
    return at;
}

static bool is_word_char(int32_t c) {
    if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    utf8proc_category_t k = utf8proc_category(c);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_MC) || k == UTF8PROC_CATEGORY_ND ||
           k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_PC;
}

static bool is_digit(int c) { return c >= '0' && c <= '9'; }
static int hex_digit(int c) {
    return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}
static int peek(const lexer *x, size_t at) { return at < x->n ? (unsigned char)x->s[at] : -1; }
static bool looking_at(const lexer *x, size_t at, const char *text) {
    size_t n = strlen(text);
    return x->n - at >= n && memcmp(x->s + at, text, n) == 0;
}

static void count_lines(lexer *x, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) x->line += x->s[i] == '\n';
}

/* ---- strings -------------------------------------------------------------------------------------------------------- */

static size_t put_char(char *out, int32_t c) { return (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)out); }

/* \x, \u and \U: that many hexadecimal digits. */
static status unescape_hex(lexer *x, const char *s, size_t n, int n_digits, char *out, size_t *n_out) {
    int64_t c = 0;
    for (int i = 0; i < n_digits; i++) {
        int digit = (size_t)i < n ? hex_digit(s[i]) : -1;
        if (digit < 0) return LEX_ERR(x, "an escape in a string needs %d hexadecimal digits", n_digits);
        c = c * 16 + digit;
    }
    if (c > 0x10ffff) return LEX_ERR(x, "an escape in a string is beyond the last Unicode character");
    if (c >= 0xd800 && c <= 0xdfff)
        return LEX_ERR(x, "\\u%04x in a string is half of a surrogate pair, which no text can hold", (unsigned)c);
    *n_out += put_char(out + *n_out, (int32_t)c);
    return OK;
}

/* A backslash before a character beyond ASCII: Python writes that as an escape first, and so doubles the backslash. */
static size_t escape_spelled(const char *s, size_t n, char *out, size_t *n_out) {
    size_t k;
    int32_t c = decode(s, n, &k);
    *n_out += (size_t)sprintf(out + *n_out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
    return k;
}

/* The escape behind a backslash at s; *used: its bytes. */
static status unescape(lexer *x, const char *s, size_t n, char *out, size_t *n_out, size_t *used) {
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    unsigned char c = (unsigned char)*s;
    *used = 1;
    if (c == '\n') return OK;
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (plain[i] == (char)c) {
            out[(*n_out)++] = plain[i + 1];
            return OK;
        }
    if (c == 'x' || c == 'u' || c == 'U') {
        int n_digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        *used = 1 + (size_t)n_digits;
        return unescape_hex(x, s + 1, n - 1, n_digits, out, n_out);
    }
    if (c == 'N') return LEX_ERR(x, "the escape \\N{...} in a string is not supported: write the character itself");
    if (c >= '0' && c <= '7') {
        int32_t octal = 0;
        size_t k = 0;
        for (; k < 3 && k < n && s[k] >= '0' && s[k] <= '7'; k++) octal = octal * 8 + (s[k] - '0');
        *n_out += put_char(out + *n_out, octal);
        *used = k;
        return OK;
    }
    if (c >= 0x80) {
        *used = escape_spelled(s, n, out, n_out);
        return OK;
    }
    out[(*n_out)++] = '\\';
    out[(*n_out)++] = (char)c;
    return OK;
}

static status lex_string(lexer *x) {
    char quote = x->s[x->at];
    size_t begin = x->at + 1, end = begin;
    while (end < x->n && x->s[end] != quote) end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n) return LEX_ERR(x, "a string that begins with %c has no end", quote);
    /* An escape can only grow where it is spelled out: \ and two bytes become \xe9. */
    char *text = arena_alloc(x->memory, (end - begin) * 4 + 1);
    size_t n = 0;
    token *t = push(x, T_STRING);
    for (size_t i = begin; i < end;) {
        if (x->s[i] != '\\') {
            text[n++] = x->s[i++];
            continue;
        }
        size_t used;
        TRY(unescape(x, x->s + i + 1, end - i - 1, text, &n, &used));
        i += 1 + used;
    }
    t->text = text;
    t->length = n;
    count_lines(x, x->at, end);
    x->at = end + 1;
    return OK;
}

/* ---- numbers -------------------------------------------------------------------------------------------------------- */

/* Digits with single underscores between them, of which at least one: where they end; `at` where there are none. */
static size_t skip_digits(const lexer *x, size_t at, int base, bool may_begin_with_underscore) {
    for (size_t begin = at;; at++) {
        size_t digit = at;
        if (peek(x, at) == '_' && (at > begin || may_begin_with_underscore)) digit++;
        int d = hex_digit(peek(x, digit));
        if (d < 0 || d >= base) return at;
        at = digit;
    }
}

static size_t float_end(const lexer *x) {
    size_t at = skip_digits(x, x->at, 10, false), behind, digits;
    if (x->at > 0 && x->s[x->at - 1] == '.') return 0;
    bool has_fraction = peek(x, at) == '.' && (behind = skip_digits(x, at + 1, 10, false)) > at + 1;
    if (has_fraction) at = behind;
    if (peek(x, at) == 'e' || peek(x, at) == 'E') {
        digits = at + 1 + (peek(x, at + 1) == '+' || peek(x, at + 1) == '-');
        behind = skip_digits(x, digits, 10, false);
        if (behind > digits) return behind;
    }
    return has_fraction ? at : 0;
}

static status lex_number(lexer *x) {
    size_t end = float_end(x), begin = x->at, n = 0;
    bool is_float = end > 0;
    int base = 10, letter = peek(x, begin + 1) | 0x20;
    if (!is_float && x->s[begin] == '0' && (letter == 'b' || letter == 'o' || letter == 'x')) {
        base = letter == 'b' ? 2 : letter == 'o' ? 8 : 16;
        end = skip_digits(x, begin + 2, base, true);
        if (end == begin + 2) base = 10;
        else begin += 2;
    }
    if (!is_float && base == 10) {
        end = begin + 1;
        if (x->s[begin] != '0') end = skip_digits(x, begin, 10, false);
        else
            while (peek(x, end) == '0') end++;
    }
    char digits[400];
    for (size_t i = begin; i < end; i++) {
        if (n + 1 >= sizeof digits) return LEX_ERR(x, "a number of more than %zu digits", sizeof digits - 2);
        if (x->s[i] != '_') digits[n++] = x->s[i];
    }
    digits[n] = 0;
    token *t = push(x, is_float ? T_FLOAT : T_INTEGER);
    errno = 0;
    if (is_float) t->real = strtod(digits, NULL);
    else t->integer = strtoll(digits, NULL, base);
    if (!is_float && errno == ERANGE)
        return LEX_ERR(x, "the integer %.40s is too large: at most 9223372036854775807 is supported", digits);
    x->at = end;
    return OK;
}

/* ---- inside of tags ------------------------------------------------------------------------------------------------- */

static status lex_name(lexer *x) {
    size_t begin = x->at, k;
    while (x->at < x->n && is_word_char(decode(x->s + x->at, x->n - x->at, &k))) x->at += k;
    token *t = push(x, T_NAME);
    t->text = arena_alloc(x->memory, x->at - begin + 1);
    memcpy((char *)t->text, x->s + begin, x->at - begin);
    t->length = x->at - begin;
    return OK;
}

static status lex_operator(lexer *x) {
    static const struct {
        const char *text;
        token_kind kind;
    } operators[] = {
        {"//", T_FLOORDIV}, {"**", T_POW},      {"==", T_EQ},    {"!=", T_NE},    {">=", T_GE},    {"<=", T_LE},
        {"+", T_ADD},       {"-", T_SUB},       {"/", T_DIV},    {"*", T_MUL},    {"%", T_MOD},    {"~", T_TILDE},
        {"[", T_LBRACKET},  {"]", T_RBRACKET},  {"(", T_LPAREN}, {")", T_RPAREN}, {"{", T_LBRACE}, {"}", T_RBRACE},
        {">", T_GT},        {"<", T_LT},        {"=", T_ASSIGN}, {".", T_DOT},    {":", T_COLON},  {"|", T_PIPE},
        {",", T_COMMA},     {";", T_SEMICOLON},
    };
    for (size_t i = 0; i < ARRAY_LENGTH(operators); i++) {
        if (!looking_at(x, x->at, operators[i].text)) continue;
        char c = operators[i].text[0];
        if (strchr("([{", c)) {
            x->open = array_grow(x->open, &x->open_capacity, x->n_open + 1, 1);
            x->open[x->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (strchr(")]}", c)) {
            if (!x->n_open) return LEX_ERR(x, "unexpected '%c'", c);
            if (x->open[--x->n_open] != c) return LEX_ERR(x, "unexpected '%c', expected '%c'", c, x->open[x->n_open]);
        }
        push(x, operators[i].kind);
        x->at += strlen(operators[i].text);
        return OK;
    }
    size_t n;
    decode(x->s + x->at, x->n - x->at, &n);
    return LEX_ERR(x, "unexpected character '%.*s' in a tag", (int)n, x->s + x->at);
}

/* The end of a tag at this place: how far it reaches, white space that it takes with it; 0: it is none. */
static size_t tag_end(const lexer *x, size_t at, const char *end, bool trims) {
    size_t n = strlen(end);
    if (peek(x, at) == '-' && looking_at(x, at + 1, end)) return skip_space(x, at + 1 + n);
    if (trims && peek(x, at) == '+' && looking_at(x, at + 1, end)) return at + 1 + n;
    if (!looking_at(x, at, end)) return 0;
    at += n;
    return trims && peek(x, at) == '\n' ? at + 1 : at;
}

/* Everything up to the end of a block or variable. */
static status lex_tag(lexer *x, bool is_block) {
    while (x->at < x->n) {
        size_t end = x->n_open ? 0 : tag_end(x, x->at, is_block ? "%}" : "}}", is_block), k;
        if (end) {
            push(x, is_block ? T_BLOCK_END : T_VARIABLE_END);
            count_lines(x, x->at, end);
            x->line_starting = x->s[end - 1] == '\n';
            x->at = end;
            return OK;
        }
        int c = peek(x, x->at);
        if ((k = space_length(x->s + x->at, x->n - x->at)) > 0) {
            count_lines(x, x->at, x->at + k);
            x->at += k;
        } else if (is_digit(c)) TRY(lex_number(x));
        else if (c == '\'' || c == '"') TRY(lex_string(x));
        else if (is_word_char(decode(x->s + x->at, x->n - x->at, &k))) TRY(lex_name(x));
        else TRY(lex_operator(x));
    }
    return OK; /* the parser says what is missing */
}

/* ---- between tags --------------------------------------------------------------------------------------------------- */

/* Text before a tag, cut as its sign says. */
static void push_data(lexer *x, size_t begin, size_t end, int sign, bool may_lstrip) {
    size_t cut = end;
    if (sign == '-') {
        for (size_t i = begin, k; i < end; i += k) {
            int32_t c = decode(x->s + i, end - i, &k);
            if (!is_space_char(c)) cut = i + k;
            else if (i == begin) cut = begin;
        }
        if (begin == end) cut = begin;
    } else if (sign != '+' && may_lstrip) {
        size_t line = end;
        while (line > begin && x->s[line - 1] != '\n') line--;
        if (line > begin || x->line_starting) {
            size_t i = line;
            for (size_t k; i < end && (k = space_length(x->s + i, end - i)) > 0;) i += k;
            if (i == end) cut = line;
        }
    }
    if (cut > begin) {
        token *t = push(x, T_DATA);
        t->text = arena_copy(x->memory, x->s + begin, cut - begin);
        t->length = cut - begin;
    }
    count_lines(x, begin, end);
}

static int sign_at(const lexer *x, size_t at) {
    int c = peek(x, at);
    return c == '-' || c == '+' ? c : 0;
}

/* {% word %} at this place: where it ends, as `ends` says; 0: something else. */
static size_t word_tag(const lexer *x, size_t at, const char *word, bool is_raw_begin) {
    if (!looking_at(x, at, "{%")) return 0;
    at += 2;
    if (sign_at(x, at)) at++;
    at = skip_space(x, at);
    if (!looking_at(x, at, word)) return 0;
    at = skip_space(x, at + strlen(word));
    if (!is_raw_begin) return tag_end(x, at, "%}", true);
    return peek(x, at) == '+' ? 0 : tag_end(x, at, "%}", false);
}

static status lex_raw(lexer *x, size_t begin) {
    for (size_t at = begin; at < x->n; at++) {
        const char *next = memchr(x->s + at, '{', x->n - at);
        if (!next) break;
        at = (size_t)(next - x->s);
        size_t end = word_tag(x, at, "endraw", false);
        if (!end) continue;
        push_data(x, begin, at, sign_at(x, at + 2), true);
        count_lines(x, at, end);
        x->line_starting = x->s[end - 1] == '\n';
        x->at = end;
        return OK;
    }
    return LEX_ERR(x, "{%% raw %%} without {%% endraw %%}");
}

static status lex_comment(lexer *x) {
    size_t begin = x->at;
    for (size_t at = begin; at < x->n; at++) {
        size_t end = tag_end(x, at, "#}", true);
        if (!end) continue;
        count_lines(x, begin, end);
        x->line_starting = x->s[end - 1] == '\n';
        x->at = end;
        return OK;
    }
    return LEX_ERR(x, "a comment {# without its end #}");
}

static status lex_root(lexer *x) {
    while (x->at < x->n) {
        size_t begin = x->at, at = begin;
        while (at < x->n && !(x->s[at] == '{' && at + 1 < x->n && strchr("%{#", x->s[at + 1]) && x->s[at + 1])) at++;
        if (at >= x->n) {
            push_data(x, begin, x->n, '+', false);
            x->at = x->n;
            break;
        }
        size_t raw = word_tag(x, at, "raw", true);
        char kind = x->s[at + 1];
        int sign = sign_at(x, at + 2);
        push_data(x, begin, at, sign, kind != '{');
        if (raw) {
            count_lines(x, at, raw);
            x->line_starting = x->s[raw - 1] == '\n';
            TRY(lex_raw(x, raw));
            continue;
        }
        x->at = at + 2 + (sign != 0);
        x->line_starting = false;
        if (kind == '#') {
            TRY(lex_comment(x));
            continue;
        }
        push(x, kind == '%' ? T_BLOCK_BEGIN : T_VARIABLE_BEGIN);
        TRY(lex_tag(x, kind == '%'));
    }
    push(x, T_END);
    return OK;
}

/* All line breaks become \n; the last one goes. */
static size_t normalize(const char *s, size_t n, char *out) {
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\r') {
            out[k++] = '\n';
            if (i + 1 < n && s[i + 1] == '\n') i++;
        } else out[k++] = s[i];
    }
    return k && out[k - 1] == '\n' ? k - 1 : k;
}

status lex(const char *source, size_t n_bytes, const char *name, arena *memory, token_list *out) {
    char *s = arena_alloc(memory, n_bytes + 1);
    lexer x = {.s = s, .n = normalize(source, n_bytes, s), .name = name, .memory = memory, .out = out, .line = 1};
    x.line_starting = true;
    status rc = lex_root(&x);
    free(x.open);
    return rc;
}
