/* chat_inside.h -- what a chat template says, shared by chat_shape.c and chat.c alone. */
#ifndef ENGINE_CHAT_INSIDE_H
#define ENGINE_CHAT_INSIDE_H

#include <stdbool.h>
#include <stddef.h>

typedef enum {
    STYLE_CHATML,
    STYLE_QWEN3,
    STYLE_ROLE_TAGS,
    STYLE_LLAMA3,
    STYLE_LLAMA2,
    STYLE_MISTRAL
} chat_style;

/* Which message of a Mistral conversation carries the system text. */
typedef enum { SYSTEM_REFUSED, SYSTEM_IN_FIRST, SYSTEM_IN_LAST } system_place;

enum { SHAPE_TEXT = 8192 };

/* Strings lie in `text`: a shape is filled where it stays. */
typedef struct chat_shape {
    chat_style style;
    const char *name;
    bool bos;                   /* begins with the model's bos token */
    const char *default_system; /* rendered when the conversation has no system message; or NULL */
    const char *opening;        /* the assistant's, for add_generation_prompt */
    const char *end;            /* role tags: what ends a message; NULL: the model's eos token */
    bool dated;                 /* llama-3: the header with two dates */
    const char *knowledge;      /* ... the first */
    const char *date;           /* ... the second; NULL: today */
    const char *user[2];        /* mistral: around a user's text */
    const char *with_system[3]; /* ... around the system's and a user's */
    const char *reply[2];       /* ... before an assistant's, and after the eos token */
    bool trim_user, trim_system, trim_reply;
    system_place system;
    char text[SHAPE_TEXT];
    size_t used;
} chat_shape;

/* The styles' names and what they are where no template says more; false: unknown name. */
bool chat_shape_named(chat_shape *s, const char *name);

/* Reads a template's text.  True: `s` renders what it renders, for conversations without tools;
 * false: it is none of ours, or says something that is not known here. */
bool chat_shape_read(chat_shape *s, const char *text);

#endif
