/* command_show.c - ralo show: records as the model reads them, with what is trained on between marks. */
#include "cli/output.h"
#include "cli/record_text.h"

#include <stdlib.h>

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
    status rc = v->error ? OK : record_text_write(t, v->tokens, !l->json, &text);
    if (rc == OK && l->json) {
        print_json(v, &text);
    } else if (rc == OK && v->error) {
        printf("%s\n\n", v->error);
    } else if (rc == OK) {
        printf("%s:%llu: %s%s%zu tokens, %zu trained on\n", v->path, (unsigned long long)v->line,
               v->part ? v->part : "", v->part ? ": " : "", v->tokens->n, record_text_trained(v->tokens));
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
