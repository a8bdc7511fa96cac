#pragma once
/* machine.h - descriptions of machines: what a program is compiled for (target), and how fast it would run (hardware).
 *
 * No device is touched here: a plan can be made for a machine that is not here. The room `measure` fills a description with
 * the rates of this machine. */
#include "machine/hardware.h"
#include "machine/target.h"
