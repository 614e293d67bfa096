/* civetweb-requests.inl -- requests without civetweb's own HTTP: built into civetweb.c by civetweb.patch.
 *
 * Of civetweb a worker keeps the socket, TLS and the buffer.  What stands in the buffer is judged by the
 * callback read_head (gateway/http/head.c), the body is taken from it piece by piece by mg_fill() and
 * mg_take(); what is left behind a request is the beginning of the next.  So civetweb's parsers of
 * heads, targets, chunks, forms and its WebDAV, CGI and files are in no path, and most are not built.
 *
 * The buffer: [0, request_len) the head, whose fields point into it; then the body's bytes, of which
 * `consumed_content` have been taken, up to data_len.
 */

/* Waits until more has come behind what is there: how much; 0: none in time; -1: nothing will. */
static int requests_pull(struct mg_connection *conn, double seconds)
{
    uint64_t end = mg_get_current_time_ns() + (uint64_t)(seconds * 1e9), now;
    while ((now = mg_get_current_time_ns()) < end) {
        /* A part of a TLS record wakes it, too, without a byte for us. */
        int n = pull_inner(NULL, conn, conn->buf + conn->data_len, conn->buf_size - conn->data_len,
                           (double)(end - now) / 1e9);
        if (n > 0) {
            conn->data_len += n;
            return n;
        }
        if (n < -1) return -1;
    }
    return 0;
}

int mg_waiting(struct mg_context *ctx)
{
    (void)pthread_mutex_lock(&ctx->thread_mutex);
    int n = ctx->sq_head - ctx->sq_tail;
    (void)pthread_mutex_unlock(&ctx->thread_mutex);
    return n;
}

/* How long the client may be silent between two requests, or take for a head, in seconds. */
static double requests_patience(const struct mg_connection *conn, int option)
{
    return atoi(conn->dom_ctx->config[option]) / 1000.0;
}

/* False: the connection ends, and whoever had begun a request has been told why. */
static int requests_read_head(struct mg_connection *conn)
{
    uint64_t end = 0; /* from the first byte on */
    double head_s = requests_patience(conn, REQUEST_TIMEOUT);
    double idle_s = requests_patience(conn, conn->handled_requests ? KEEP_ALIVE_TIMEOUT : REQUEST_TIMEOUT);
    enum mg_head_state state = MG_HEAD_GROWS;
    for (;;) {
        if (conn->data_len > 0) {
            if (!end) end = mg_get_current_time_ns() + (uint64_t)(head_s * 1e9);
            int n = conn->phys_ctx->callbacks.read_head(conn, conn->buf, conn->data_len, state,
                                                        &conn->request_info);
            if (n != 0) {
                conn->request_len = n;
                return n > 0;
            }
        }
        if (state != MG_HEAD_GROWS) return 0;
        uint64_t now = mg_get_current_time_ns();
        double left_s = now < end ? (double)(end - now) / 1e9 : 0;
        if (!end) left_s = idle_s < 1 ? idle_s : 1; /* and then is asked for again */
        int n = requests_pull(conn, left_s);
        if (!STOP_FLAG_IS_ZERO(&conn->phys_ctx->stop_flag)) return 0;
        if (!end && n == 0 && (idle_s -= left_s) > 0 &&
            conn->phys_ctx->callbacks.read_head(conn, conn->buf, 0, MG_HEAD_IDLE,
                                                &conn->request_info) == 0) {
            continue;
        }
        if (n <= 0) state = n < 0 ? MG_HEAD_CUT : MG_HEAD_LATE;
    }
}

int mg_fill(struct mg_connection *conn, const char **data)
{
    int at = conn->request_len + (int)conn->consumed_content;
    if (at == conn->data_len) {
        conn->consumed_content = 0;
        conn->data_len = at = conn->request_len;
        int n = requests_pull(conn, requests_patience(conn, REQUEST_TIMEOUT));
        if (n <= 0) return n;
    }
    *data = conn->buf + at;
    return conn->data_len - at;
}

void mg_take(struct mg_connection *conn, int n)
{
    conn->consumed_content += n;
}

/* Instead of process_new_connection(): requests one after another, until one asks for the end. */
static void requests_serve(struct mg_connection *conn)
{
    const struct mg_callbacks *cb = &conn->phys_ctx->callbacks;
    reset_per_request_attributes(conn);
    if (!conn->ssl && !cb->plain_begins(conn, conn->client.sock)) {
        close_connection(conn);
        return;
    }
    do {
        reset_per_request_attributes(conn);
        conn->consumed_content = 0;
        if (!requests_read_head(conn)) break;
        (void)conn->phys_ctx->callbacks.begin_request(conn);
        int done = conn->request_len + (int)conn->consumed_content;
        conn->data_len -= done;
        memmove(conn->buf, conn->buf + done, (size_t)conn->data_len);
        memset(conn->buf + conn->data_len, 0, (size_t)done); /* heads have keys */
        conn->handled_requests++;
    } while (!conn->must_close && STOP_FLAG_IS_ZERO(&conn->phys_ctx->stop_flag));
    close_connection(conn);
}
