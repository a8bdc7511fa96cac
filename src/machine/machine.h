#pragma once
/* machine.h - machines as descriptions: what a program must be made for (target), and how fast it would run (hardware).
 *
 * No device is touched here: a plan can be made for a machine that is not there. The room `measure` fills a description with
 * what this machine can do. */
#include "machine/hardware.h"
#include "machine/target.h"
