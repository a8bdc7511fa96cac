#pragma once
/* pissa.h - private to weights: adapters that begin as the principal part of the weights (model.lora.init: pissa).
 *
 * Of each adapted module W (out, in), with the first `rank` singular triples U S V and the scale s of LoRA:
 *
 *     B0 = U sqrt(S / s),  A0 = sqrt(S / s) V,  and the base becomes W - s B0 A0
 *
 * so the model is the same before the first step. Factors and base are made from the fp32 numbers of the files or the seed, so
 * they are the same whatever computes with them, and nothing of it has to be stored: a resumed run and `generate` make them again.
 *
 * Outside of ralo nobody has that base. An export is therefore an adapter of twice the rank over the original one:
 *
 *     W - s B0 A0 + s B A = W + s [B, -B0] [A; A0] */
#include "weights/load.h"
#include "weights/param_reader.h"
#include "weights/source.h"

typedef struct pissa {
    net m, wide; /* parameters and their names: with adapters of the run, and with those of an export */
    program g, wide_g;
    double scale;
    int64_t rank;
    pool *threads;
    weight_files files;
    const safetensor **parts; /* NULL: the base is not of files */
    param_reader base;        /* rows of the base; over m */
    param_reader adapters; /* for pissa_widen: where the adapters of the run are; over m, or over a running program */
    /* of the weight in progress */
    size_t weight; /* of m; SIZE_MAX: none */
    float *a0, *b0;
} pissa;

status pissa_open(pissa *s, const model_config *c, const lora_options *o, const param_origin *base);
void pissa_close(pissa *s);
/* Takes the principal parts out of the base of a program that is loaded, and puts them into its adapters. */
status pissa_start(exec *e, const plan *p, const param_origin *base);
/* Is this the base that the adapters of `checkpoint` were trained over? Reads all of it. */
status pissa_check_base(pissa *s, const lora_base *then, const char *checkpoint);
/* Adapter i of `wide`, whole. s->adapters is set. */
status pissa_widen(pissa *s, size_t i, float *out);
