/* command_show.c - ralo show: records as the model reads them, with what is trained on between marks. */
#include "cli/output.h"

#include <stdlib.h>

/* The text of a record; trained stretches stand between >>> and <<<. */
static status write_text(const tokenizer *t, const chat_tokens *tokens, bool marks, strbuf *out) {
    status rc = OK;
    decode_stream *s = tokenizer_decode_stream(t, DECODE_KEEP_SPECIALS);
    for (size_t i = 0; i < tokens->n; i++) {
        bool is = tokens->trained[i], was = i > 0 && tokens->trained[i - 1];
        if (marks && is != was) strbuf_add(out, is ? ">>>" : "<<<");
        TRY_GOTO(rc, decode_stream_push(s, tokens->ids[i], out), done);
    }
    rc = decode_stream_end(s, out);
    if (marks && tokens->n > 0 && tokens->trained[tokens->n - 1]) strbuf_add(out, "<<<");
done:
    decode_stream_close(s);
    return rc;
}

static size_t count_trained(const chat_tokens *t) {
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) n += t->trained[i];
    return n;
}

static void print_json(const record_view *v, const strbuf *text) {
    json_t *root = json_pack("{s:o, s:I}", "file", json_text(v->path, strlen(v->path)), "line", (json_int_t)v->line);
    if (v->part) json_object_set_new(root, "part", json_string(v->part));
    if (v->error) {
        json_object_set_new(root, "error", json_text(v->error, strlen(v->error)));
    } else {
        json_t *ids = json_array(), *trained = json_array();
        for (size_t i = 0; i < v->tokens->n; i++) {
            json_array_append_new(ids, json_integer(v->tokens->ids[i]));
            json_array_append_new(trained, json_integer(v->tokens->trained[i]));
        }
        json_object_set_new(root, "text", json_text(text->text, text->length));
        json_object_set_new(root, "tokens", ids);
        json_object_set_new(root, "trained", trained);
    }
    json_print(root, "show", ALL_DIGITS);
}

static status show(void *context, const tokenizer *t, const record_view *v) {
    const command_line *l = context;
    strbuf text;
    strbuf_init(&text);
    strbuf_add(&text, "");
    status rc = v->error ? OK : write_text(t, v->tokens, !l->json, &text);
    if (rc == OK && l->json) {
        print_json(v, &text);
    } else if (rc == OK && v->error) {
        printf("%s\n\n", v->error);
    } else if (rc == OK) {
        printf("%s:%llu: %s%s%zu tokens, %zu trained on\n", v->path, (unsigned long long)v->line,
               v->part ? v->part : "", v->part ? ": " : "", v->tokens->n, count_trained(v->tokens));
        fwrite(text.text, 1, text.length, stdout);
        printf("\n\n");
    }
    strbuf_fini(&text);
    return rc;
}

status command_show(command_line *l) {
    data_options o = l->config.data;
    o.kind = config_data_kind(&l->config);
    return data_visit_records(&o, l->show_prompts, (uint64_t)l->show_most, show, l);
}
