/* chat_builtin.h -- chat templates that can be asked for by name. */
#ifndef ENGINE_CHAT_CHAT_BUILTIN_H
#define ENGINE_CHAT_CHAT_BUILTIN_H

typedef struct chat_builtin {
    const char *name, *text;
    const char *needs[4]; /* tokens without which it is not the model's */
} chat_builtin;

/* The last has no name.  Of two with the same name the first whose tokens the model has is
 * meant. */
extern const chat_builtin chat_builtins[];

#endif
