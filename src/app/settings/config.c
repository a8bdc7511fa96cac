/* config.c - the values of a config and who gave each: a default, another program's file, a file of settings, the
 * command line. */
#include "settings/assign.h"

/* key: as the user spelled it. */
status config_assign(config *c, const setting *s, int element, const char *text, bool quoted, const char *where,
                     const char *key, config_origin from) {
    TRY(setting_store(s, c, &c->memory_of_strings, element, text, quoted, where, key));
    c->origin[setting_row(s)] = (unsigned char)from;
    c->alias[setting_row(s)] = strcmp(key, s->key) == 0 ? NULL : arena_string(&c->memory_of_strings, key);
    c->data.seed = c->train.seed;
    return OK;
}

void config_init(config *c) {
    *c = (config){0};
    arena_init(&c->memory_of_strings);
    const setting *s;
    for (size_t i = 0; (s = setting_at(i)); i++) {
        status rc = config_assign(c, s, WHOLE, s->initial, false, "config.def", s->key, ORIGIN_DEFAULT);
        ASSERT(rc == OK);
    }
}

void config_copy(config *out, const config *from) {
    *out = *from;
    arena_init(&out->memory_of_strings);
    const setting *s;
    for (size_t i = 0; (s = setting_at(i)); i++) {
        if (out->alias[i]) out->alias[i] = arena_string(&out->memory_of_strings, out->alias[i]);
        if (s->storage != STORE_TEXT) continue;
        const char **text = setting_field(out, s);
        *text = arena_string(&out->memory_of_strings, *text);
    }
}

void config_fini(config *c) {
    arena_fini(&c->memory_of_strings);
    *c = (config){0};
}

status config_get(const config *c, const char *key, strbuf *out, const char *where) {
    int element;
    const setting *s = setting_find(key, &element);
    if (!s && setting_group_exists(key))
        return ERR(ERR_INPUT, "%s: '%s' is a group of settings; ask for one of them, such as %s.NAME", where, key, key);
    if (!s) return config_unknown(where, key);
    if (element == WHOLE) setting_write(c, s, false, out);
    else real_write(((const double *)setting_field(c, s))[element], out);
    return OK;
}

status config_offer(config *c, const char *key, const char *text, const char *where, const char *name,
                    config_offer_result *out) {
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    config alone; /* a value that is overridden must be in range too, and it may be the same in other words */
    strbuf ours, theirs;
    config_init(&alone);
    strbuf_init(&ours);
    strbuf_init(&theirs);
    status rc;
    TRY_GOTO(rc, config_assign(&alone, s, element, text, false, where, name, ORIGIN_FOREIGN), done);
    if (c->origin[setting_row(s)] == ORIGIN_DEFAULT) {
        TRY_GOTO(rc, config_assign(c, s, element, text, false, where, name, ORIGIN_FOREIGN), done);
        *out = OFFER_TAKEN;
    } else {
        setting_write(c, s, false, &ours);
        setting_write(&alone, s, false, &theirs);
        *out = strcmp(ours.text, theirs.text) == 0 ? OFFER_SAME : OFFER_REFUSED;
    }
done:
    strbuf_fini(&ours);
    strbuf_fini(&theirs);
    config_fini(&alone);
    return rc;
}

void config_withdraw(config *c, const char *key) {
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    if (c->origin[setting_row(s)] == ORIGIN_FOREIGN) c->origin[setting_row(s)] = ORIGIN_DEFAULT;
}

bool config_knows(const char *key) {
    int element;
    return setting_find(key, &element) || setting_group_exists(key);
}

bool config_has_key(const char *key, bool is_map) {
    int element;
    const setting *s = setting_find(key, &element);
    return is_map ? setting_group_exists(key) : s && strcmp(s->key, key) == 0;
}

const char *config_given_by(const config *c, const char *key) {
    static const char *const names[] = {[ORIGIN_DEFAULT] = "the default",
                                        [ORIGIN_FOREIGN] = "another file",
                                        [ORIGIN_FILE] = "the config file",
                                        [ORIGIN_COMMAND] = "the command line"};
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    return names[c->origin[setting_row(s)]];
}

bool config_was_given(const config *c, const char *key) {
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    return c->origin[setting_row(s)] != ORIGIN_DEFAULT;
}

bool config_overrules(const config *c, const char *key, const char *other) {
    int element;
    const setting *a = setting_find(key, &element), *b = setting_find(other, &element);
    ASSERT(a && b);
    return c->origin[setting_row(a)] > c->origin[setting_row(b)];
}

const char *config_alias(const config *c, const char *key) {
    int element;
    const setting *s = setting_find(key, &element);
    ASSERT(s != NULL);
    return c->alias[setting_row(s)];
}
