/* classes.h -- the SLO classes: one row for each, and all that hangs on which there are.
 *
 * A row makes the option [classes] NAME with its default and its text, the class's place in every
 * table, and what requests say for it.  Another class is another row (then `lorad --print-conf
 * >conf/lorad.conf`, and tests/tools/make_openapi.py, which reads the rows).
 *
 * Threads: any; nothing changes.
 */
#ifndef GATEWAY_CLASSES_H
#define GATEWAY_CLASSES_H

/* C(name, tier, other, initial, help), the most urgent first.  tier: as OpenAI's clients ask for
 * it, and what answers say; two may have the same, then the first is asked for by it.  other:
 * another of OpenAI's words for it, or "".  help: lines separated by \n. */
#define CLASS_ROWS(C)                                                                            \
    /* "fast", says OpenAI, is the same as priority */                                           \
    C(interactive, "priority", "fast", "ttft:500ms tpot:50ms weight:4",                          \
      "SLO class for people who wait: targets for the first token and for each further one,\n"   \
      "and its share.  With overload:reject a request is answered 429 at once, with the time\n"  \
      "to come back, where its first token would miss the target; without it, it waits in the\n" \
      "queue.  Asked for as service_tier \"priority\" or \"interactive\".")                      \
    /* "scale" without such a contract is the default tier */                                    \
    C(standard, "default", "scale", "ttft:2s tpot:100ms weight:2",                               \
      "Asked for as \"default\" or \"standard\".")                                               \
    C(batch, "flex", "", "ttft:60s tpot:1s weight:1", "Asked for as \"flex\" or \"batch\".")

#define CLASS_CONSTANT(name, tier, other, initial, help) CLASS_##name,
enum { CLASS_ROWS(CLASS_CONSTANT) SERVER_CLASSES };
#undef CLASS_CONSTANT

#define CLASS_DEFAULT "standard" /* of requests that ask for none, before [classes] default */

/* Of class `i`, from 0 to SERVER_CLASSES. */
const char *class_name(int i);
const char *class_tier(int i);

/* By its own name; -1: there is none. */
int class_of_name(const char *name);

/* By what service_tier may say: a tier, another word for it, or its name; -1: none of them. */
int class_of_tier(const char *text);

#endif
