#pragma once
/* assign.h - private to settings: how a text becomes a value of a config, for the readers of files, of --set and of
 * offers. */
#include "settings/config.h"
#include "settings/foreign_names.h"
#include "settings/setting.h"

typedef enum config_origin { ORIGIN_DEFAULT, ORIGIN_FOREIGN, ORIGIN_FILE, ORIGIN_COMMAND } config_origin;
enum { PAIR = 2, WHOLE = -1 }; /* values of a PAIR; all of a setting, not one half of it */

/* key: as the user spelled it. */
status config_assign(config *c, const setting *s, int element, const char *text, bool quoted, const char *where,
                     const char *key, config_origin from);
size_t setting_row(const setting *s); /* its place in config.def, and so in config.origin */
bool setting_group_exists(const char *name);
char *spaces_trim(char *text); /* without the blanks around it, in place */
status setting_refuse(const setting *s, const char *where, const char *key, const char *found);
