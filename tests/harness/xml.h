#pragma once
/* xml.h - a strict reader of the pictures that ralo writes: elements nest and end, attributes are quoted and unique in name, text
 * and values hold no bare < or &, only known entities, and only characters that XML allows. */

const char *find_xml_error(const char *text); /* NULL, or where it stopped */
