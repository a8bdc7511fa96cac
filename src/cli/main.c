/* main.c - the commands of ralo as a table; the only place that exits. */
#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

#define VERSION "0.1.0"

static const command commands[] = {
    {"train",
     "train [CONFIG] [--preset NAME] [--set key=value]... [--resume auto|DIR] [--device-memory 8G] [--trace FILE]\n"
     "             [--hardware NAME|FILE] [--show-config] [--json]",
     "train; without CONFIG the built-in default on this machine", command_train},
    {"plan",
     "plan [CONFIG] [--preset NAME] [--set key=value]... [--device-memory 24G] [--hardware NAME|FILE] [--world N]\n"
     "             [--program] [--json]",
     "show where every byte of the step would live, without running it", command_plan},
    {"generate",
     "generate --model DIR [--prompt TEXT]... [--prompt-file FILE] [-] [--max-new N] [--temperature T] [--top-p P]\n"
     "             [--stop TEXT]... [--seed S] [-n K] [--plan] [--json]      'ralo generate --help' has more",
     "complete prompts with a Hugging Face model, a run or a checkpoint", command_generate},
    {"eval",
     "eval --model DIR --data FILE [--last SHARE] [--seq-len N] [--answer-regex RE] [--samples N --k K] [--json]\n"
     "             'ralo eval --help' has more",
     "perplexity on a text, or right answers on a .jsonl with questions", command_eval},
    {"export", "export RUN|CHECKPOINT DIR [--dtype fp32|bf16|fp16] [--json]",
     "write a trained model as a Hugging Face directory", command_export},
    {"devices", "devices [--measure [FILE]] [--path DIR] [--hardware NAME|FILE] [--json]",
     "what this machine has and can do; --measure writes it down for plan, --hardware shows a description",
     command_devices},
};

static void print_help(FILE *out) {
    fputs("ralo trains language models that do not fit: it plans where every byte of the step lives, shows that plan "
          "and\n"
          "runs exactly that plan.\n\n",
          out);
    for (size_t i = 0; i < ARRAY_LENGTH(commands); i++)
        fprintf(out, "  ralo %s\n      %s\n", commands[i].usage, commands[i].what);
    fputs("\n  ralo help settings     every setting with its range and default\n"
          "  ralo help presets      models known by name\n"
          "  ralo --version\n\nExit codes: 0 done, 1 the run failed, 2 the request was wrong, 3 it does not fit, "
          "130 interrupted after a checkpoint.\n",
          out);
}

static void print_presets(FILE *out) {
    for (size_t i = 0; model_preset_at(i); i++) {
        const model_config *c = model_preset_at(i);
        char buf[32];
        fprintf(out, "  %-16s %-6s %8s parameters, %lld layers, hidden %lld\n", c->name,
                model_family_traits(c->family)->name, str_format_count(buf, (double)model_param_count(c)),
                (long long)c->n_layers, (long long)c->hidden);
    }
}

static status help(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "settings") == 0) config_print_help(stdout);
    else if (argc > 1 && strcmp(argv[1], "presets") == 0) print_presets(stdout);
    else print_help(stdout);
    return OK;
}

static status dispatch(int argc, char **argv) {
    if (argc < 1 || strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0 || strcmp(argv[0], "help") == 0)
        return help(argc, argv);
    if (strcmp(argv[0], "--version") == 0) {
        puts("ralo " VERSION);
        return OK;
    }
    const char *nearest = commands[0].name;
    for (size_t i = 0; i < ARRAY_LENGTH(commands); i++) {
        if (strcmp(argv[0], commands[i].name) == 0) return commands[i].run(argc, argv);
        if (str_edit_distance(argv[0], commands[i].name) < str_edit_distance(argv[0], nearest))
            nearest = commands[i].name;
    }
    return ERR(ERR_INPUT, "unknown command '%s'; did you mean '%s'? 'ralo --help' lists them", argv[0], nearest);
}

int main(int argc, char **argv) {
    status rc = dispatch(argc - 1, argv + 1);
    if (rc != OK) error_print(stderr);
    return error_exit_code(rc);
}
