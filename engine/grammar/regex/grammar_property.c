/* grammar_property.c -- \p{..} of an expression: a general category of Unicode.
 *
 * A character that a newer Unicode has added belongs to no property here, and to no opposite.
 */
#include <string.h>

#include "engine/grammar/regex/grammar_regex.h"
#include "engine/text/unicode/unicode.h"

typedef struct {
    const char *brief, *name;
    uint64_t kinds;
} category;

#define K(x) ((uint64_t)1 << UNICODE_##x)

static const category categories[] = {
    {"Lu", "Uppercase_Letter", K(LU)},
    {"Ll", "Lowercase_Letter", K(LL)},
    {"Lt", "Titlecase_Letter", K(LT)},
    {"LC", "Cased_Letter", K(LU) | K(LL) | K(LT)},
    {"Lm", "Modifier_Letter", K(LM)},
    {"Lo", "Other_Letter", K(LO)},
    {"L", "Letter", K(LU) | K(LL) | K(LT) | K(LM) | K(LO)},
    {"Mn", "Nonspacing_Mark", K(MN)},
    {"Mc", "Spacing_Mark", K(MC)},
    {"Me", "Enclosing_Mark", K(ME)},
    {"M", "Mark", K(MN) | K(MC) | K(ME)},
    {"Nd", "Decimal_Number", K(ND)},
    {"Nl", "Letter_Number", K(NL)},
    {"No", "Other_Number", K(NO) | K(NO_WORD)},
    {"N", "Number", K(ND) | K(NL) | K(NO) | K(NO_WORD)},
    {"Pc", "Connector_Punctuation", K(PC)},
    {"Pd", "Dash_Punctuation", K(PD)},
    {"Ps", "Open_Punctuation", K(PS)},
    {"Pe", "Close_Punctuation", K(PE)},
    {"Pi", "Initial_Punctuation", K(PI)},
    {"Pf", "Final_Punctuation", K(PF)},
    {"Po", "Other_Punctuation", K(PO)},
    {"P", "Punctuation", K(PC) | K(PD) | K(PS) | K(PE) | K(PI) | K(PF) | K(PO)},
    {"Sm", "Math_Symbol", K(SM)},
    {"Sc", "Currency_Symbol", K(SC)},
    {"Sk", "Modifier_Symbol", K(SK)},
    {"So", "Other_Symbol", K(SO) | K(SO_WORD)},
    {"S", "Symbol", K(SM) | K(SC) | K(SK) | K(SO) | K(SO_WORD)},
    {"Zs", "Space_Separator", K(ZS)},
    {"Zl", "Line_Separator", K(ZL)},
    {"Zp", "Paragraph_Separator", K(ZP)},
    {"Z", "Separator", K(ZS) | K(ZL) | K(ZP)},
    {"Cc", "Control", K(CC) | K(CC_SPACE)},
    {"Cf", "Format", K(CF)},
    {"Co", "Private_Use", K(CO)},
};

static bool is(const char *name, const char *s, size_t n)
{
    return strlen(name) == n && memcmp(name, s, n) == 0;
}

static bool begins(const char **s, size_t *n, const char *with)
{
    size_t len = strlen(with);
    if (*n < len || memcmp(*s, with, len) != 0) return false;
    *s += len;
    *n -= len;
    return true;
}

static uint64_t kinds_of(const char *s, size_t n)
{
    (void)(begins(&s, &n, "gc=") || begins(&s, &n, "General_Category="));
    for (size_t i = 0; i < sizeof(categories) / sizeof(categories[0]); i++)
        if (is(categories[i].brief, s, n) || is(categories[i].name, s, n))
            return categories[i].kinds;
    return 0;
}

bool g_class_property(g_class *c, const char *s, size_t n, bool opposite)
{
    uint64_t kinds = kinds_of(s, n), known = ~K(CN);
    if (opposite) kinds = kinds ? known & ~kinds : 0;
    for (int i = 0; i < unicode_kinds_n && kinds;) {
        uint32_t first = unicode_kinds[i] & 0xFFFFFF;
        bool in = kinds >> (unicode_kinds[i] >> 24) & 1;
        while (i < unicode_kinds_n && (kinds >> (unicode_kinds[i] >> 24) & 1) == in) i++;
        uint32_t last = i < unicode_kinds_n ? (unicode_kinds[i] & 0xFFFFFF) - 1 : 0x10FFFF;
        if (in && last > 0) g_class_add(c, first ? first : 1, last);
    }
    return kinds != 0;
}
