/* libpq.h -- PostgreSQL's client library, found by its name when it is first wanted.
 *
 * So lorad neither links to it nor needs it where SQLite alone is used.  Prototypes are those of
 * libpq.so.5, which has kept them since PostgreSQL 9.
 *
 * Threads: any.
 */
#ifndef STORAGE_FLEET_LIBPQ_H
#define STORAGE_FLEET_LIBPQ_H

#include <stddef.h>

#include "engine/base/err.h"

typedef struct pg_conn PGconn;
typedef struct pg_result PGresult;

/* libpq's own values. */
enum { PG_CONNECTION_OK = 0, PG_COMMAND_OK = 1, PG_TUPLES_OK = 2 };
enum { PG_POLL_FAILED = 0, PG_POLL_READING = 1, PG_POLL_WRITING = 2, PG_POLL_OK = 3 };
enum { PG_SQLSTATE = 'C' };

#define LIBPQ_LIST(X)                                                                   \
    X(PGconn *, PQconnectStartParams, (const char *const *, const char *const *, int))  \
    X(int, PQconnectPoll, (PGconn *))                                                   \
    X(int, PQstatus, (const PGconn *))                                                  \
    X(int, PQserverVersion, (const PGconn *))                                           \
    X(int, PQsocket, (const PGconn *))                                                  \
    X(char *, PQerrorMessage, (const PGconn *))                                         \
    X(void, PQfinish, (PGconn *))                                                       \
    X(int, PQsetnonblocking, (PGconn *, int))                                           \
    X(int, PQsendQueryParams,                                                           \
      (PGconn *, const char *, int, const unsigned *, const char *const *, const int *, \
       const int *, int))                                                               \
    X(int, PQflush, (PGconn *))                                                         \
    X(int, PQconsumeInput, (PGconn *))                                                  \
    X(int, PQisBusy, (PGconn *))                                                        \
    X(PGresult *, PQgetResult, (PGconn *))                                              \
    X(int, PQresultStatus, (const PGresult *))                                          \
    X(char *, PQresultErrorField, (const PGresult *, int))                              \
    X(char *, PQresultErrorMessage, (const PGresult *))                                 \
    X(int, PQnfields, (const PGresult *))                                               \
    X(int, PQntuples, (const PGresult *))                                               \
    X(int, PQgetlength, (const PGresult *, int, int))                                   \
    X(int, PQgetisnull, (const PGresult *, int, int))                                   \
    X(char *, PQgetvalue, (const PGresult *, int, int))                                 \
    X(void, PQclear, (PGresult *))                                                      \
    X(void *, PQnotifies, (PGconn *))                                                   \
    X(void, PQfreemem, (void *))

#define LIBPQ_FIELD_(type, name, args) type(*name) args;
typedef struct libpq {
    LIBPQ_LIST(LIBPQ_FIELD_)
} libpq;
#undef LIBPQ_FIELD_

/* ERR_UNSUPPORTED: it is not on this machine, or lacks a function. */
err_code libpq_load(const libpq **out, err *e);

#endif
