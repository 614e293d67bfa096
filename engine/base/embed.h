/* embed.h -- files of the source tree as bytes of the program.
 *
 * EMBED(name, file) defines `name` and `name_end`; a NUL byte follows the last byte, so that a text
 * is also a string.  The assembler reads the file, so CMakeLists.txt must name it in the source's
 * OBJECT_DEPENDS, and define EMBED_ROOT.
 *
 * Threads: data only.
 */
#ifndef ENGINE_BASE_EMBED_H
#define ENGINE_BASE_EMBED_H

#define EMBED(name, file)                                                                     \
    __asm__(".section .rodata\n.balign 16\n" #name ":\n.incbin \"" EMBED_ROOT "/" file "\"\n" \
            ".globl " #name "\n.globl " #name "_end\n" #name "_end:\n.byte 0\n.previous\n");  \
    extern const char name[], name##_end[];

#endif
