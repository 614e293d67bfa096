/* civetweb-requests.inl -- the loop of a worker: built into civetweb.c by civetweb.patch.
 *
 * A worker receives a connection when its request is ready (gateway/net/lobby.h) and returns it
 * after the answer.  civetweb's part is the thread, the buffer, and reads and writes that wait.  So
 * its accept loop, its handshake and its parsers of heads, targets, chunks and forms are in no path.
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

int mg_fill(struct mg_connection *conn, const char **data)
{
    int at = conn->request_len + (int)conn->consumed_content;
    if (at == conn->data_len) {
        conn->consumed_content = 0;
        conn->data_len = at = conn->request_len;
        int n = requests_pull(conn, atoi(conn->dom_ctx->config[REQUEST_TIMEOUT]) / 1000.0);
        if (n <= 0) return n;
    }
    *data = conn->buf + at;
    return conn->data_len - at;
}

void mg_take(struct mg_connection *conn, int n)
{
    conn->consumed_content += n;
}

/* One request after another, until the server stops. */
static void requests_run(struct mg_connection *conn)
{
    const struct mg_callbacks *cb = &conn->phys_ctx->callbacks;
    struct mg_ready r;
    conn->connection_type = CONNECTION_TYPE_REQUEST;
    conn->protocol_type = PROTOCOL_TYPE_HTTP1;
    while (cb->next_ready(conn, conn->buf, &r)) {
        reset_per_request_attributes(conn);
        conn->client.sock = r.sock;
        conn->ssl = r.ssl;
        conn->data_len = r.len;
        conn->request_len = cb->read_head(conn, conn->buf, r.len, &conn->request_info);
        if (conn->request_len > 0)
            (void)cb->begin_request(conn);
        else
            conn->request_len = conn->data_len; /* nobody knows where the next one would begin */
        int done = conn->request_len + (int)conn->consumed_content;
        cb->request_done(conn, conn->buf + done, conn->data_len - done, conn->must_close);
        conn->ssl = NULL;
        memset(conn->buf, 0, (size_t)conn->data_len); /* heads have keys */
    }
}
