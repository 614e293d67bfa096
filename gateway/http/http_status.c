/* http_status.c -- the table of HTTP's status codes and their reason phrases. */
#include "gateway/http/http_status.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define REQUEST "invalid_request_error"

static const struct {
    err_code code;
    http_status h;
} table[] = {
    {ERR_INPUT, {400, REQUEST, "invalid_value"}},
    {ERR_CORRUPT, {422, REQUEST, "corrupt_data"}},
    {ERR_NOT_FOUND, {404, REQUEST, "not_found"}},
    {ERR_EXISTS, {409, "conflict_error", "already_exists"}},
    {ERR_DENIED, {403, "permission_error", "not_allowed"}},
    {ERR_LIMIT, {413, REQUEST, "limit_exceeded"}},
    {ERR_BUSY, {429, "overloaded_error", "queue_full"}},
    {ERR_CANCELLED, {499, "server_error", "cancelled"}},
    {ERR_TIMEOUT, {504, "timeout_error", "request_timeout"}},
    {ERR_NOMEM, {503, "overloaded_error", "out_of_memory"}},
    {ERR_IO, {503, "server_error", "storage_unavailable"}},
    {ERR_DEVICE, {503, "server_error", "device_error"}},
    {ERR_INTERNAL, {500, "server_error", "internal_error"}},
    {ERR_UNSUPPORTED, {400, REQUEST, "unsupported"}},
    {ERR_CONFLICT, {409, "conflict_error", "conflict"}},
    {ERR_EXPIRED, {401, REQUEST, "expired_api_key"}},
    {ERR_SUSPENDED, {403, "permission_error", "tenant_suspended"}},
    {ERR_NO_ROOM, {507, "server_error", "insufficient_storage"}},
    {ERR_RESTARTING, {503, "server_error", "engine_restarting"}},
    {ERR_STALE, {412, REQUEST, "precondition_failed"}},
    {ERR_DAMAGED, {500, "server_error", "adapter_damaged"}},
    {ERR_STOPPING, {503, "server_error", "shutting_down"}},
    {ERR_ELSEWHERE, {503, "server_error", "adapter_not_on_node"}},
};

const http_status *http_status_of(err_code code)
{
    static const http_status unknown = {500, "server_error", "internal_error"};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].code == code) return &table[i].h;
    }
    return &unknown;
}

const char *http_dropped_reason(int status, const char *code)
{
    static const struct {
        const char *code, *reason;
    } dropped[] = {
        {"queue_full", "rejected-saturated"},       {"too_many_connections", "rejected-saturated"},
        {"too_many_streams", "rejected-saturated"}, {"storage_unavailable", "rejected-saturated"},
        {"out_of_memory", "rejected-saturated"},    {"shutting_down", "rejected-shutting-down"},
        {"engine_restarting", "evicted"},           {"device_error", "rejected-internal"},
    };
    if (status != 429 && status != 503) return NULL;
    for (size_t i = 0; i < sizeof(dropped) / sizeof(dropped[0]); i++) {
        if (strcmp(dropped[i].code, code) == 0) return dropped[i].reason;
    }
    return NULL;
}

const char *http_reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {{200, "OK"},
                   {201, "Created"},
                   {202, "Accepted"},
                   {204, "No Content"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {409, "Conflict"},
                   {411, "Length Required"},
                   {412, "Precondition Failed"},
                   {413, "Content Too Large"},
                   {414, "URI Too Long"},
                   {415, "Unsupported Media Type"},
                   {417, "Expectation Failed"},
                   {422, "Unprocessable Content"},
                   {428, "Precondition Required"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"},
                   {504, "Gateway Timeout"},
                   {505, "HTTP Version Not Supported"},
                   {507, "Insufficient Storage"}};
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        if (reasons[i].status == status) return reasons[i].text;
    }
    return "Unknown";
}

const char *http_code(int status)
{
    switch (status) {
    case 408: return "request_timeout";
    case 414: return "uri_too_long";
    case 415: return "unsupported_media_type";
    case 417: return "expectation_failed";
    case 431: return "header_fields_too_large";
    case 501: return "not_implemented";
    case 505: return "http_version_not_supported";
    default: return "bad_request";
    }
}

/* By hand, for the format knows no locale. */
void http_date(char out[HTTP_DATE_BYTES])
{
    static const char day[][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char month[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                    "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t now = time(NULL);
    struct tm t;
    (void)gmtime_r(&now, &t);
    snprintf(out, HTTP_DATE_BYTES, "%s, %02u %s %04u %02u:%02u:%02u GMT", day[t.tm_wday % 7],
             (unsigned)t.tm_mday % 32, month[t.tm_mon % 12], (unsigned)(t.tm_year + 1900) % 10000,
             (unsigned)t.tm_hour % 24, (unsigned)t.tm_min % 60, (unsigned)t.tm_sec % 61);
}
