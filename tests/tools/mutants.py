"""mutants.py -- faults that tests must see, one for each main rule of the product; mutate.sh plants them.

A row: name, file, the exact text (there once and only once), what it becomes, the ctests that must turn red,
the rule that the fault breaks.  Choose texts that say the rule and little else, so that they outlive rewriting.
"""

QUICK = {"fair.aged-first", "kv.tokens-compared", "limits.settled-once", "guard.one-framing",
         "sampler.seed-and-number", "keys.revoked-is-out"}  # what CI runs: small rebuilds, six areas

_rows = []


def _rule(name, file, old, new, tests, rule):
    _rows.append((name, file, old, new, tests.split(), rule))


# ---- adapters from elsewhere -------------------------------------------------------------------

_rule("fetch.address-checked", "gateway/fetch/fetch.c",
      "if (!source_may_reach(h->rules, &a)) {", "if (!a.bits) {",
      "e2e.test_sources", "a connection goes to public addresses and to those of sources.networks only")
_rule("fetch.secret-stays-home", "gateway/fetch/fetch.c",
      "*home = *home && port == s->port && strcasecmp(host, s->host) == 0;", "(void)port;",
      "e2e.test_sources", "credentials do not follow a redirect to another server")

_rule("hub.digest-checked", "gateway/fetch/hub_file.c",
      "return strcmp(hex, d->f->digest) == 0;", "return *hex != 0;",
      "e2e.test_base_model", "a file of a base model has the digest that the hub lists")
_rule("hub.resumes", "gateway/fetch/hub_file.c",
      "        d->from = before;", "        d->from = 0;",
      "e2e.test_base_model", "a download that was cut continues behind the bytes that are there")
_rule("models.least-recent-goes", "gateway/start/model_cache.c",
      "return (x->used_us > y->used_us) - (x->used_us < y->used_us);", "return (x->used_us < y->used_us) - (x->used_us > y->used_us);",
      "e2e.test_base_model", "of downloaded models the least recently used goes first")

_rule("artifact.secret-stays-home", "gateway/fetch/artifact.c",
      "    if (home && !fetch_authorization(a->secret, own))", "    if (!fetch_authorization(a->secret, own))",
      "e2e.test_registry", "a token server at another host than the registry's gets no credentials")
_rule("artifact.digest-checked", "gateway/fetch/artifact.c",
      "else if (digest_is(l->digest, sha))", "else if (w.n >= 0)",
      "e2e.test_registry", "a layer is what the manifest's digest says")

_rule("source-secrets.sealed", "storage/seal/source_secrets.c",
      "if (!seal_close(key, label, text, strlen(text), w.sealed))", "if (!key || !memcpy(w.sealed, text, strlen(text)))",
      "e2e.test_sources", "credentials that a tenant keeps are encrypted on the disk")

_rule("first.bounded", "gateway/rest/adapter_first.c",
      "if (!one && n_tenant >= OF_TENANT_MAX) return no_such(name, e);", "",
      "e2e.test_first_request", "names that are not there do not make a tenant's template ask without end")
_rule("first.one-flight", "gateway/rest/adapter_first.c",
      "if (strcmp(one->name, name) == 0) hit = one;", "if (!one->running && strcmp(one->name, name) == 0) hit = one;",
      "e2e.test_first_request", "who asks while an adapter is fetched waits for that fetch")
_rule("first.template-host", "gateway/fetch/source.c",
      "if (!hole || !end || hole < end)", "if (!hole || !end)",
      "e2e.test_first_request", "no name chooses a template's host")

_rule("aliases.not-of-the-deleted", "storage/adapter_rows.c",
      "if (goes && is_unnamed(db, c->id, e)) return e->code;", "if (goes && is_unnamed(db, 0, e)) return e->code;",
      "adapters.test_registry", "no version goes that another node has just pointed an alias at")

# ---- streams that are resumed ------------------------------------------------------------------

_rule("resume.seam", "gateway/openai/completion_answer.c",
      "return c->ask.numbered && !c->run.past_seam && tokens_of(ch) == c->ask.resume_after;", "return c->ask.numbered && c->run.past_seam && !ch;",
      "e2e.test_resume", "a resumed stream begins behind the tokens that the client has")
_rule("resume.own-tenant", "gateway/move/ticket.c",
      '(unsigned long long)tenant_id', '(unsigned long long)(tenant_id ? 1 : 0)',
      "e2e.test_resume", "another tenant's ticket is none")
_rule("resume.same-request", "gateway/openai/completion_answer.c",
      "if (memcmp(asked, t.asked, DIGEST_BYTES) != 0)", "if (!c->rq.stream)",
      "e2e.test_resume", "a ticket serves the request that it was given for")

# ---- a fleet's object store ------------------------------------------------------------------

_rule("depot.digest-checked", "adapters/store/depot.c",
      "if (memcmp(whole, f->v.digest, DIGEST_BYTES) != 0)", "if (left > f->v.file_bytes)",
      "e2e.test_store", "what comes from the store is what the version's digest says")
_rule("depot.one-flight", "adapters/store/depot.c",
      "while (f && (f->state == FLIGHT_DONE || memcmp(f->v.digest, v->digest, DIGEST_BYTES) != 0))", "while (f)",
      "e2e.test_store", "many who ask for a version make one download")
_rule("depot.last-copy", "adapters/store/depot.c",
      "if (rc == ERR_NOT_FOUND) continue;", "if (rc == ERR_NOT_FOUND) rc = ERR_NONE;",
      "e2e.test_store", "files that the store lacks do not go from the disk")
_rule("depot.on-device", "adapters/store/depot.c",
      "if (!c->idle || in_use(d, c->digest)) continue;", "if (!c->idle || (in_use(d, c->digest) && !c->bytes)) continue;",
      "e2e.test_store", "files of what is on the device do not go from the disk")
_rule("depot.dropped", "adapters/store/depot.c",
      "    depot_look(self, digest);", "    (void)self, (void)digest;",
      "e2e.test_store", "an object goes after its last version")
_rule("fleet.catch-up", "gateway/openai/completion_admit.c",
      "    store_catch_up(store_of(c->srv), CATCH_UP_US);\n", "",
      "e2e.test_store", "a name that another node has made is known at the next request")

# ---- packed weights --------------------------------------------------------------------------

_rule("packed.header-checked", "engine/model/packed.c",
      "&& h->check == packed_check_of(h);", ";",
      "engine.test_packed", "a file of packed weights whose header was changed is none")
_rule("packed.length-checked", "engine/model/packed.c",
      "(uint64_t)st.st_size != want->bytes", "false",
      "engine.test_packed", "a file of packed weights of another length is none")
_rule("packed.matrix-checksums", "engine/model/packed.c",
      "if (!same) atomic_store(&v->bad, (size_t)i + 1);", "if (row->bytes == 0 && !same) atomic_store(&v->bad, 1);",
      "engine.test_packed", "a matrix whose bytes differ from its checksum is packed again, not served")
_rule("responses.checksums", "storage/seal/responses.c",
      "if (summed && check_of(label, text, len) != check)", "if (summed && check_of(label, text, len) == 0)",
      "storage.test_responses", "a stored response that was damaged on the disk is an error, not an answer")
_rule("mapping.loss-fails-the-step", "engine/backend.c",
      "    if (mapping_lost())\n        backend_fail(", "    if (!be)\n        backend_fail(",
      "engine.test_packed", "a step that read beyond a mapped file's end is no answer")
_rule("check.deep", "engine/model/model_weights.c",
      "fingerprint_add(&f, s->part[k].data, s->part[k].bytes);", "fingerprint_add(&f, s->part[k].data, 8);",
      "e2e.test_integrity", "the full digest covers every byte of every tensor")
_rule("schema.released-steps", "storage/schema.c",
      '"ALTER TABLE adapters ADD COLUMN rpm INTEGER NOT NULL DEFAULT 0;"', '"ALTER TABLE adapters ADD COLUMN rpm INTEGER NOT NULL DEFAULT 1;"',
      "storage.test_store", "a step of the schema that a release has run never changes")
_rule("client.certificate-renewed", "tui/client.c",
      "SET(CURLOPT_CA_CACHE_TIMEOUT, 0L);", "SET(CURLOPT_CA_CACHE_TIMEOUT, 86400L);",
      "e2e.test_loratop", "a loratop that is open trusts the certificate file as it is now")
_rule("config.old-names", "gateway/config/config_read.c",
      "if (!present) return assign(c, r->section, key, trim(eq + 1), CONFIG_FILE, e);", "if (key) return assign(c, r->section, key, trim(eq + 1), CONFIG_FILE, e);",
      "gateway.test_config e2e.test_upgrade", "a configuration file of an earlier version starts the new server")
_rule("responses.counted", "storage/schema.c",
      '" UPDATE responses_held SET n = n - 1, bytes = bytes - old.bytes"', '" UPDATE responses_held SET n = n - 1"',
      "storage.test_responses", "what a tenant has stored is counted with its rows")
_rule("responses.rows-bounded", "storage/seal/responses.c",
      "if (p->quota->rows && rows > p->quota->rows)", "if (p->quota->rows < 0)",
      "storage.test_responses", "a tenant stores so many responses and conversations at most")
_rule("batches.ended-bounded", "storage/batches/batches.c",
      "if (p->quota->ended == 0) return ERR_NONE;", "if (p->quota->ended >= 0) return ERR_NONE;",
      "storage.test_batches", "batches that have ended are bounded for each tenant")
_rule("audit.operators-stay", "storage/audit.c",
      " AND actor_key_id IN (SELECT id FROM api_keys WHERE tenant_id = ?1)", "",
      "storage.test_store", "a tenant's own writes push no row of an operator's out of the audit log")
_rule("limits.writes", "gateway/route.c",
      "if (x->caller->tenant.id && changes_state(r) &&", "if (x->caller->tenant.id && !changes_state(r) &&",
      "e2e.test_limits", "calls that change stored state are within requests_per_minute")
_rule("stacks.base-allowed", "gateway/openai/completion_stack.c",
      "if (!auth_may_use_model(c->x, process_of(c->srv)->cfg->model.name))", "if (!c->srv)",
      "e2e.test_stacks", "a stack needs the base in the tenant's list of models")
_rule("alora.base-allowed", "gateway/openai/completion_admit.c",
      "if (n == of || auth_may_use_model(c->x, process_of(c->srv)->cfg->model.name)) return true;", "if (n <= of) return true;",
      "e2e.test_alora", "a prompt that does not invoke its adapter needs the base in the tenant's list of models")
_rule("fetch.share", "gateway/rest/adapter_source.h",
      "FETCHES_OF_TENANT = 2 };", "FETCHES_OF_TENANT = 4 };",
      "e2e.test_sources", "one tenant's slow sources leave room for others'")
_rule("encode.bounded", "gateway/openai/vocabulary.c",
      "return bytes / v->longest <= (size_t)n;", "return n > 0 || bytes < v->longest;",
      "e2e.test_limits", "a text that cannot fit the context is not tokenised")
_rule("nice-pool.groups", "engine/program/nice_pool.c",
      "while (*at && group_runs(p, (*at)->group)) at", "while (*at && p->stop && group_runs(p, (*at)->group)) at",
      "base.test_nice_pool", "a tenant's long texts do not hold up another's")
_rule("stream.events-bounded", "gateway/openai/completion.c",
      "return !c->rq.stream ||", "return c->run.n_choices ||",
      "e2e.test_limits", "a stream that nobody reads holds the text of some tokens")
_rule("residency.renewed", "adapters/residency/residency.c",
      "if (en && en->state == RESIDENCY_FAILED) en->failed_us", "if (en && en->state == RESIDENCY_DISK) en->failed_us",
      "adapters.test_residency", "an adapter whose files came again is loaded at its next use")
_rule("config.paths-of-the-file", "gateway/config/change.c",
      "if (!rc && ask[i].value && item.path)", "if (!rc && ask[i].value && n < 0)",
      "gateway.test_change", "the admin API does not choose which files the server reads")
_rule("wal.discarded-is-told", "storage/wal_check.c",
      "damaged |= ours && word(w->frame + 4) != 0;", "damaged |= false;",
      "storage.test_wal", "what SQLite discards of its log is told")
_rule("self-check.sees", "storage/watch/self_check.c",
      "atomic_store(&c->damaged, what[0] != 0);", "atomic_store(&c->damaged, false);",
      "storage.test_wal", "damage of the database is seen while it is open")
_rule("packed.key-of-files", "engine/model/model_weights.c",
      "packed_key_add(&key, model_files_stamp(l->files));", "packed_key_add(&key, 1);",
      "engine.test_packed", "packed weights are those of the model's files as they are")
_rule("packed.floor", "engine/model/packed_write.c",
      "if (room >= need && room - need >= k->floor_bytes) return true;", "if (room >= need) return true;",
      "engine.test_packed", "packed weights leave data.min_free alone")

# ---- vectors and classes ---------------------------------------------------------------------

_rule("pooled.every-position", "engine/sched/sched_plan.c",
      "if (len > from + 1) len = from + 1;", "if (len < from) len = from;",
      "engine.test_sched_pool", "a mean takes nothing from the prefix cache that it has not read")
_rule("pooled.head-of-adapter", "engine/sched/sched_sample.c",
      "if (rq->run.lora && rq->run.lora->score_head) return rq->run.lora->score_head;", "if (!rq->pool) return NULL;",
      "engine.test_sched_pool", "an adapter's classes are those of its own head")
_rule("pooled.classes-make-no-text", "engine/sched/sched_plan.c",
      "if (rq->pool || !rq->run.lora || !rq->run.lora->score_head) return true;", "return true;",
      "engine.test_sched_pool", "who has a head of classes is not served as a model of text")
_rule("pooled.dimensions", "gateway/doors/embeddings_api.c",
      "if (em->dimensions && a->by->config->normalise) pooling_normalise(v, n);", "",
      "e2e.test_embeddings", "a shortened vector has length 1 again")
_rule("pooled.max-seq-length", "gateway/openai/completion_pooled.c",
      "return own > 0 && own < room ? own : room;", "return own > room ? own : room;",
      "e2e.test_embeddings", "an input is no longer than the model's folder says")

# ---- quantised weights -----------------------------------------------------------------------

_rule("quant.signs", "engine/cpu/quant_kernels.h",
      "qv four = _mm256_sign_epi8(quant_four(x + r * QUANT_QUAD), v);",
      "qv four = quant_four(x + r * QUANT_QUAD);",
      "cpu.test_kernels", "products of quantised weights have the weights' signs")
_rule("quant.rounded-bf16", "engine/cpu/quant_coded.h",
      "vf_set(0x1.8p16F)", "vf_set(0x1.8p15F)",
      "cpu.test_kernels", "what FP8 and NF4 stand for is rounded to bf16, with one row as with many")
_rule("quant.coded-scales", "engine/cpu/quant_coded.h",
      "(__m512)(v[1] * scale[1])", "(__m512)(v[1] * scale[0])",
      "cpu.test_kernels", "each column's codes have its own scale (where VDPBF16PS runs)")
_rule("quant.order-of-x", "engine/cpu/linear.c",
      "x[(size_t)r * d + w->quant.order[k]];", "x[(size_t)r * d + k];",
      "cpu.test_kernels", "a quantised matrix reads x in its own order of columns")
_rule("quant.zero", "engine/cpu/quant_parts.h",
      "if (f->form == SCALES_ZERO) d -= off * (lean - zero);", "",
      "cpu.test_kernels", "each column's own zero is taken away")
_rule("quant.nested-min", "engine/cpu/quant_parts.h",
      "*min = part + f->min_parts + j;", "*min = part + j;",
      "cpu.test_kernels", "nested mins have parts of their own")
_rule("quant.halves-of-x", "engine/cpu/quant_parts.h",
      "if (h > 0 && to->span == QUANT_K) {", "if (h > 0) {",
      "cpu.test_kernels", "where blocks have 16 columns, x has a scale for each 16")
_rule("quant.outliers", "engine/cpu/quant_parts.h",
      "scale[h] * 127 > limit", "scale[h] * 127 > 2 * limit",
      "cpu.test_kernels", "groups of more than twice the mean have 16 bits")
_rule("quant.rest-of-out", "engine/cpu/linear.c",
      "if (w->quant.outliers) job->quants->rest(", "if (x->rest) job->quants->rest(",
      "cpu.test_kernels", "an out that shares rounded rows adds the rest of outliers where it asks for it")
_rule("quant.second-plane", "engine/cpu/linear.c",
      "buf[i] = high[0] + high[PANEL];", "buf[i] = high[0];",
      "cpu.test_kernels", "of x in 16 bits both planes are summed")
_rule("quant.cut-at-spans", "engine/cpu/linear.c",
      "round_up(job->d_in / cuts, QUANT_K)", "job->d_in / cuts",
      "cpu.test_kernels", "threads share out columns of x by whole groups that have a scale")
_rule("quant.rows-by-span", "engine/cpu/linear.c",
      "w->quant.k == f->k &&\n            w->quant.planes == f->planes)", "w->quant.k == f->k)",
      "cpu.test_kernels", "outs that read x in other planes do not share its rounded rows")
_rule("quant.parts-ahead", "engine/cpu/quant_kernels.h",
      "memcpy(parts + i - f.parts_at, run + i, 64);", "memcpy(parts + i - f.parts_at, run + f.parts_at, 64);",
      "cpu.test_kernels", "of nested parts that are read ahead each keeps its place")
_rule("quant.columns-at-once", "engine/cpu/quant_kernels.h",
      "quant_dots(dot + l * rows, two + l * rows, w, x, rows, bits, in_order);",
      "quant_dots(dot + l, two + l, w, x, rows, bits, in_order);",
      "cpu.test_kernels", "rows that take all columns at once have sums of their own (where VPDPBUSD runs)")
_rule("quant.rows-lean", "engine/cpu/quant_kernels.h",
      "t->scale[i][r % rows], t->lean[i][r % rows]);", "t->scale[i][r % rows], t->lean[i][0]);",
      "cpu.test_kernels", "rows that are taken together have each their own sum of codes")
_rule("quant.codes-of-16-bits", "engine/cpu/quant_kernels.h",
      "even = _mm256_and_si256(even, _mm256_set1_epi16(255));", "",
      "cpu.test_kernels", "of eight rows a code of 8 bits stands alone in its 16 (AVX2, avx512)")
_rule("quant.upper-halves", "engine/cpu/quant_kernels.h",
      "_mm256_maddubs_epi16(high, many_each(x + all * QV_BYTES, i))",
      "_mm256_maddubs_epi16(high, many_each(x, i))",
      "cpu.test_kernels", "the upper halves of a plane's bytes are multiplied with their own x (AVX2, avx512)")
_rule("quant.row-of-eight", "engine/cpu/quant_kernels.h",
      "scale[r], leans[r]);", "scale[r], leans[0]);",
      "cpu.test_kernels", "each of eight rows has its own sum of codes (AVX2, avx512)")
_rule("quant.tiles-of-rows", "engine/cpu/linear_amx.c",
      "tile_dots(dot, sums[i][h], row, t->start[i]);", "tile_dots(dot, sums[i][h], 0, t->start[i]);",
      "cpu.test_kernels", "each of a tile's sixteen rows has its own sum (AMX, whose tiles are emulated)")
_rule("quant.high-bits", "engine/cpu/quant.c",
      "if (bits == 6) add_two(to + n / 2, code, n, 4);", "if (bits == 6) add_two(to + n / 2, code, n, 2);",
      "engine.test_quant", "codes of six bits keep the two highest")
_rule("quant.fp8-ties", "engine/e4m3.c",
      "u += 0x7FFFFU + (u >> 20 & 1U);", "u += 0x80000U;",
      "engine.test_quantise", "a value that becomes E4M3 becomes the nearest number")
_rule("quant.kv-type", "engine/model/model_weights.c",
      "l->m->cfg.in_integers |= by_codes", "l->m->cfg.in_integers |= false",
      "engine.test_conformance", "models in integers keep keys and values in F16 on the CPU")
_rule("packed.pieces", "engine/model/packed_write.c",
      "(const char *)k->data[i] + (from - k->at[i])", "(const char *)k->data[i]",
      "engine.test_packed", "a matrix that lies across two pieces of the file is whole")
_rule("quant.even-groups", "engine/model/model_weights.c",
      "weight_source_even(&w->s.src) &&", "",
      "engine.test_model_load", "codes in groups that no backend packs become plain values")
_rule("quant.native", "engine/model/model_weights.c",
      "return asked && l->rules->takes && !l->none_by_codes && w->matrix && !w->exact &&", "return false && asked &&",
      "engine.test_quant", "quantised matrices are served by their codes")
_rule("quant.dora", "engine/cpu/dora.c",
      "quant_panel_f32(g->panel, g->w, panel);", "memset(g->panel, 0, one.panel_bytes);",
      "cpu.test_kernels", "DoRA's gains are of the dequantised base")

# ---- thoughts --------------------------------------------------------------------------------

_rule("thinking.budget", "engine/grammar/grammar_lead.c",
      "l->budget >= 0 && l->n_made >= l->budget", "false",
      "engine.test_grammar", "thoughts end with their budget")
_rule("thinking.form-has-its-answer", "engine/grammar/grammar_lead.c",
      "l->any[id / 32] &= ~(1U << (id % 32));", "(void)id;",
      "engine.test_grammar", "an answer with a form does not end within its thoughts")
_rule("thinking.first-only", "engine/chat/thinking.c",
      "have < len ? have : len) != 0", "have < len ? have : len) != 0 && false",
      "engine.test_thinking", "marks behind an answer's first byte are its text")
_rule("thinking.counted", "gateway/openai/completion_choice.c",
      "ch->n_thought = ch->n_text;", ";",
      "e2e.test_reasoning", "tokens of thoughts are counted")

# ---- pages of other origins ------------------------------------------------------------------

_rule("cors.exact", "gateway/cors.c",
      "if (n > 0 && n == strlen(origin) && memcmp(p, origin, n) == 0) return origin;",
      "if (n > 0 && n <= strlen(origin) && memcmp(p, origin, n) == 0) return origin;",
      "e2e.test_cors", "an origin is let in by its exact text")

# ---- the Messages API ------------------------------------------------------------------------

_rule("messages.cached-apart", "gateway/doors/messages_api.c",
      "u->prompt_tokens - u->cached_tokens", "u->prompt_tokens",
      "e2e.test_messages", "input_tokens are those that were not in the cache")
_rule("messages.off-unless-asked", "gateway/doors/messages_input.c",
      'door_add_text(r->chat, "reasoning_effort", "none");', ";",
      "e2e.test_messages", "a model thinks where it is asked to")

# ---- stored responses ------------------------------------------------------------------------

_rule("responses.own-only", "storage/seal/responses.c",
      'sql_begin(&q, db, ROW_SQL "tenant_id=?1 AND id=?2 AND', 'sql_begin(&q, db, ROW_SQL "tenant_id=tenant_id+0*?1 AND id=?2 AND',
      "e2e.test_responses", "another tenant's response is not there")
_rule("responses.scrubbed", "storage/seal/responses.c",
      "(void)store_scrub(st, scrub_us); /* else soon */", "(void)scrub_us;",
      "e2e.test_responses", "what is deleted is in no file")
_rule("responses.quota", "storage/seal/responses.c",
      "if (p->quota->bytes && bytes > p->quota->bytes)", "if (p->quota->bytes < 0)",
      "e2e.test_responses", "a tenant's stored responses take no more than they may")
_rule("responses.sealed", "gateway/server.c",
      "return parts->is_sealed ? parts->key : NULL;", "return parts->is_sealed && !parts->store ? parts->key : NULL;",
      "e2e.test_responses e2e.test_batches", "with a key, what tenants store is encrypted")
_rule("responses.events-kept", "gateway/doors/background.c",
      "if (!j->streamed || j->events.failed", "if (j->streamed || j->events.failed",
      "e2e.test_responses", "a stream's events can be had again when its response is made")
_rule("files.records-stay", "storage/seal/sealed_file.c",
      '"file/%s/%d", f->label, number)', '"file/%s/%d", f->label, number * 0)',
      "storage.test_sealed_file", "sealed records do not change places")
_rule("files.damage-is-seen", "storage/seal/seal.c",
      "EVP_CipherFinal_ex(c, out + len, &more) == 1;", "EVP_CipherFinal_ex(c, out + len, &more) >= 0;",
      "e2e.test_batches", "what was changed on the disk is no answer")

# ---- requests that move ------------------------------------------------------------------------

_rule("move.tokens-so-far", "gateway/move/wire.c",
      "n_given = atomic_load(&rq->out.n_pushed)", "n_given = 0 * atomic_load(&rq->out.n_pushed)",
      "gateway.test_wire e2e.test_move", "another node goes on behind the tokens that there are")
_rule("move.seed", "gateway/move/wire.c", ".seed = from->seed", ".seed = from->seed + 1",
      "gateway.test_wire e2e.test_move", "it draws what the first would have drawn")
_rule("move.length", "gateway/move/wire.c", "return len == want ? ERR_NONE", "return len > 0 ? ERR_NONE",
      "gateway.test_wire", "an order's arrays lie within its bytes")
_rule("move.stranger", "gateway/move/mover.c",
      "== DOOR_WORD_MAX && digest_same(", "== DOOR_WORD_MAX && !digest_same(",
      "e2e.test_move", "only nodes of the fleet hand in requests")
_rule("move.next-node", "gateway/move/mover.c",
      "if (sched_submit(sched_of(m->srv), rq, &e))\n", "if (err_set(&e, ERR_IO, \"lost\"))\n",
      "e2e.test_move", "what no other node goes on with goes on here")
_rule("move.books", "gateway/move/mover.c",
      "    atomic_fetch_add(&rq->meter->output_tokens, 1);\n", "",
      "e2e.test_move", "tokens of another node are paid for once")
_rule("roles.first-token", "engine/sched/place.c",
      "first <= late * soon && ", "",
      "engine.test_place", "a prompt does not move where its first token would come later")
_rule("roles.text-kept", "gateway/move/move_api.c",
      "if (g->prompt_only && why == FINISH_LENGTH) keep_text(g);", "",
      "e2e.test_roles", "pages of a prompt that another server computed are fetched")
_rule("move.pages-damaged", "gateway/move/carry.c",
      "if (digest_same(is, t->digest[i], sizeof(is))) continue;", "if (digest_same(is, is, sizeof(is))) continue;",
      "e2e.test_move", "a page that came damaged is computed, and told by name")
_rule("move.pages-of-a-size", "gateway/move/wire.c",
      "come->page_bytes != ours->page_bytes ||", "come->page_bytes == 0 ||",
      "gateway.test_wire e2e.test_move", "pages of another kind are refused")
_rule("move.pages-whose", "gateway/move/wire.c",
      "{t->domain.isolation, (uint64_t)t->domain.from,", "{0 * t->domain.isolation, (uint64_t)t->domain.from,",
      "gateway.test_wire", "a page's digest says whose it is")
_rule("move.pages-in-place", "engine/sched/sched_pages.c",
      "j->in + (size_t)(have - j->first) * bytes", "j->in",
      "engine.test_pages e2e.test_move", "each page comes to its place")
_rule("move.pages-behind", "engine/sched/sched_pages.c",
      "if (have < j->first || want <= 0) return have;", "if (want <= 0) return have;",
      "engine.test_pages", "no page is put behind one that is not there")
_rule("move.state-of-a-size", "gateway/move/wire.c",
      "if (come->state_bytes != ours->state_bytes)", "if (come->state_bytes == 1)",
      "gateway.test_wire e2e.test_move", "a state of another size is refused")
_rule("move.state-comes", "engine/sched/sched_pages.c",
      "bytes = state_bytes(sc->mem.states);", "bytes = state_bytes(sc->mem.states) / 2;",
      "engine.test_states e2e.test_move", "another node goes on with the state that was there")
_rule("move.state-damaged", "gateway/move/carry.c",
      "bool good = digest_same(is, t->state, sizeof(is));", "bool good = digest_same(is, is, sizeof(is));",
      "e2e.test_move", "a state that came damaged is not used")

# ---- files and batches -----------------------------------------------------------------------

_rule("batches.own-only", "storage/batches/files.c",
      'FILE_SQL "WHERE tenant_id = ?1 AND id = ?2"', 'FILE_SQL "WHERE tenant_id = tenant_id + 0 * ?1 AND id = ?2"',
      "e2e.test_batches", "another tenant's file is not there")
_rule("batches.done-once", "gateway/batches/journal.c",
      "        done->line[i] = 1;", "        done->line[i] = 0;",
      "e2e.test_batches", "a line that stands in a file is not done again")
_rule("batches.torn-end", "gateway/batches/journal.c",
      'if (memcmp(text + len - 2, "}\\n", 2) != 0 || memchr(text, 0, len)) return -1;', "",
      "e2e.test_batches", "a torn line is cut off")
_rule("batches.billed-once", "storage/ledger.c",
      "if (!rc && !fresh) rc = take_back(", "if (!rc && !fresh && !r) rc = take_back(",
      "storage.test_ledger e2e.test_batches", "the usage of a line done again stands in the place of the first attempt's")
_rule("batches.limits-wait", "gateway/batches/line_run.c",
      "r->status == 429 || r->status == 499", "r->status == 499",
      "e2e.test_batches", "a line that meets a limit waits")
_rule("batches.urgent-first", "gateway/batches/pace.c",
      "v->crowded || is_harm(v)", "v->crowded || (!v && is_harm(v))",
      "gateway.test_pace", "lines give way to more urgent requests")
_rule("batches.stand-back", "engine/sched/policy.c",
      "if (rq[plan[i].request].background)", "if (!rq)",
      "engine.test_policy engine.test_sched", "lines of batches run in no step that a first token waits for")
_rule("batches.no-long-step", "engine/sched/policy.c",
      "return fmax(others_us, fmin(slack_us, unnoticed * (double)ttft_us));", "return fmax(others_us, slack_us);",
      "engine.test_policy", "lines of batches make no step long")
_rule("batches.turns", "engine/sched/policy.c",
      "return dx ? by_due(&rq[x->request], &rq[y->request], tie) : tie;", "return tie;",
      "engine.test_policy", "lines of batches have their rows by turns")
_rule("multipart.across-pieces", "gateway/http/multipart.c",
      "rc = give(m, m->mark, was, e);", "(void)was;",
      "gateway.test_multipart", "what only looked like a boundary is data")

# ---- a fleet ----------------------------------------------------------------------------------

_rule("fleet.seal", "storage/fleet/changes.c",
      "return digest_same(digest, (const uint8_t *)bytes + MAGIC, DIGEST_BYTES);", "return true;",
      "storage.test_changes", "no byte of a damaged change is looked at")
_rule("fleet.shared-tables-only", "storage/fleet/changes.c",
      "if (!is_shared(table))", "if (false)",
      "storage.test_changes", "the journal reaches no table that is not shared")
_rule("fleet.position-in-the-transaction", "storage/fleet/fleet.c",
      "if (!rc) rc = mirror_move(db, f->seq + 1, e);", "",
      "storage.test_fleet", "the mirror's position moves with the change that it counts")
_rule("fleet.doubt-is-settled", "storage/fleet/fleet.c",
      "if (r.there) return ERR_NONE;", "",
      "storage.test_fleet", "a change whose answer was lost is looked for")
_rule("fleet.fenced", "storage/fleet/fleet.c",
      "s->epoch != epoch;", "s->epoch < 0;",
      "storage.test_fleet", "a server whose number was taken writes nothing more")
_rule("fleet.own-rows-do-not-join", "storage/fleet/fleet.c",
      "if (!rc && any)", "if (false)",
      "storage.test_fleet", "a directory with rows of its own joins no fleet")
_rule("fleet.catch-up-first", "storage/fleet/fleet.c",
      "if (!rc) rc = catch_up(f, j, db, &s, e);", "",
      "storage.test_fleet", "a change is made on top of all that the journal has")
_rule("fleet.ids-above-the-millisecond", "storage/store.c",
      "tick_of((uint64_t)sql_col_int(&q, 0)) | ((1u << SEQ_BITS) - 1);", "tick_of((uint64_t)sql_col_int(&q, 0));",
      "storage.test_store", "no id is given twice where another node's is the largest")
_rule("leases.what-came-stays", "gateway/limits_lease.c",
      "if (!s->stop && most < a->hope[r]) most = a->hope[r];", "if (!s->stop && most < need) most = need;",
      "gateway.test_limits_lease", "what a lease was given for requests that wait is not given back before they woke")
_rule("limits.the-day-that-was-left", "gateway/limits.c",
      "if (a->before.day == next.day)", "if (false)",
      "gateway.test_limits", "a clock that is set back finds what still runs of that day")
_rule("fleet.away-is-healthy", "storage/store.c",
      "if (end != BATCH_AWAY) st->healthy = end == BATCH_DONE;", "st->healthy = end == BATCH_DONE;",
      "storage.test_fleet", "a fleet's database that is away takes no server out of service")

# ---- who is next ------------------------------------------------------------------------------

_rule("fair.aged-first", "engine/sched/fair.c",
      "if (x->aged != y->aged) return x->aged;", "if (x->aged != y->aged) return y->aged;",
      "engine.test_fair", "a head that has waited too long goes before all others")
_rule("fair.oldest-of-the-flow", "engine/sched/fair.c",
      "if (f->jobs[i].head_us < j->head_us) j->head_us = f->jobs[i].head_us;", "",
      "engine.test_fair", "a head is as old as the oldest of its flow")
_rule("fair.tenants-by-rounds", "engine/sched/fair.c",
      "if (x->tenant_round != y->tenant_round) return x->tenant_round < y->tenant_round;", "",
      "engine.test_fair", "a tenant far beyond its share waits behind the others")
_rule("fair.classes-by-rounds", "engine/sched/fair.c",
      "if (x->class_round != y->class_round) return x->class_round < y->class_round;", "",
      "engine.test_fair", "classes share by their weights")
_rule("fair.no-old-credit", "engine/sched/fair.c",
      "int64_t lift = least - f->tenants[t].served;", "int64_t lift = 0 * (least - f->tenants[t].served);",
      "engine.test_fair", "a tenant that comes back brings no old credit")
_rule("fair.no-old-credit-of-classes", "engine/sched/fair.c",
      "int64_t lift = least - f->class_served[c];", "int64_t lift = 0 * (least - f->class_served[c]);",
      "engine.test_fair", "a class that comes back brings no old credit")
_rule("fair.refund", "engine/sched/fair.c",
      "if (j->used > j->charged) charge(f, j, j->used - j->charged);",
      "charge(f, j, j->used - j->charged);",
      "engine.test_fair", "a seat is charged with what is expected until it ends")
_rule("fair.weights", "engine/sched/fair.c",
      ".unit = llround(fmin(1e9, fmax(1, SCALE / in->weight)))", ".unit = SCALE",
      "engine.test_fair", "tenants share by their weights")
_rule("fair.missed-is-no-hurry", "engine/sched/fair.c",
      "(double)slack < j->prompt * f->price.row_us", "(double)slack < -1e18",
      "engine.test_fair", "a deadline that is missed is no hurry")
_rule("policy.late-share", "engine/sched/policy.c",
      "n.late |= r->deadline_us != 0;", "n.late |= 0 * (r->deadline_us != 0);",
      "engine.test_policy", "beside a prompt that is late, steps last as long as the streams' targets allow")
_rule("policy.late-promise", "engine/sched/policy.c",
      "if (of.late) us = fmax(us, target);", "if (of.late) us = INFINITY;",
      "engine.test_policy", "a late prompt takes no stream's promise")
_rule("fair.skip-join", "engine/sched/fair.c",
      "return c->rank + too_long;", "return c->rank + 0 * too_long;",
      "engine.test_fair", "a prompt that alone outlasts its target joins one class lower")
_rule("fair.few-demands", "engine/sched/fair.c",
      "return f->n_blocked + asked < DEMANDS &&", "return f->n_blocked + asked < 1000 * DEMANDS &&",
      "engine.test_fair", "only a few adapters are asked for at once")
_rule("fair.company", "engine/sched/fair.c",
      "if (!f->scarce) return 0;", "if (f) return 0;",
      "engine.test_fair", "where room is short, brief answers go first")
_rule("fair.waits-for-company", "engine/sched/fair.c",
      "return f->scarce && (double)(now_us - j->arrived_us) < spare;", "return f->scarce && spare < -1e18 * (double)now_us;",
      "engine.test_fair", "where room is short, who has time waits for company")
_rule("fair.ghosts", "engine/sched/fair.c",
      "if (!blocked) add_ghost(f, j);", "if (!blocked && want < 0) add_ghost(f, j);",
      "engine.test_fair", "one pick shares between tenants as many picks would")
_rule("fair.pre-emption-keeps-age", "engine/sched/fair.c",
      "j->head_us += now_us - j->seated_us;", "j->head_us = now_us;",
      "engine.test_fair", "who is pre-empted does not begin to age anew")
_rule("fair.closed-adapters", "engine/sched/fair.c",
      "en->closed_us = INT64_MAX;", "en->closed_us = 0;",
      "engine.test_fair", "an adapter long in use makes room for one that starves")
_rule("policy.ageing", "engine/sched/policy.c",
      "return r->class_rank > raised ? r->class_rank - raised : 0;", "return r->class_rank + 0 * raised;",
      "engine.test_policy", "waiting raises the class")
_rule("policy.missed-displaces-nobody", "engine/sched/policy.c",
      "return slack >= 0 && ", "return ",
      "engine.test_policy", "a missed deadline takes no seat from others")
_rule("policy.victim-came-last", "engine/sched/policy.c",
      "rq[i].arrived_us >= rq[worst].arrived_us", "rq[i].arrived_us <= rq[worst].arrived_us",
      "engine.test_policy", "of equals the one that came last gives way")
_rule("policy.only-weaker-give-way", "engine/sched/policy.c",
      "return may_displace(b, now_us) && urgency(&v, a) > urgency(&v, b);",
      "return may_displace(b, now_us) && urgency(&v, a) >= urgency(&v, b);",
      "engine.test_policy", "nobody gives way to an equal")
_rule("policy.streams-keep-pace", "engine/sched/policy.c",
      "if (of.stretch <= gentle && !of.late) return fmin(step_us > 0 ? step_us : slack, pace);",
      "if (of.stretch <= gentle && !of.late) return step_us > 0 ? step_us : slack;",
      "engine.test_policy", "prompts stretch the streams' steps by a share and no more")
_rule("policy.reserve", "engine/sched/policy.c",
      "left -= reserve * (double)(r->deadline_us - r->arrived_us);", "left -= 0 * reserve;",
      "engine.test_policy", "a part of the target is kept in reserve")
_rule("policy.bounded-chunks", "engine/sched/policy.c",
      "int take = rq[i].left < rq[i].max_chunk ? rq[i].left : rq[i].max_chunk;", "int take = rq[i].left;",
      "engine.test_policy", "chunks of a prompt are bounded")
_rule("policy.own-pace", "engine/sched/policy.c",
      "int64_t due = first_us + made * tpot_us, gap", "int64_t due = last_us + tpot_us + 0 * (first_us + made), gap",
      "engine.test_policy", "what a stream is ahead or behind counts for its next token")
_rule("policy.soon-first", "engine/sched/policy.c",
      "if (sx != sy) return sx ? -1 : 1;", "if (sx != sy) return sx ? 1 : -1;",
      "engine.test_policy", "who cannot sit out a step goes before who can")
_rule("policy.class-shares", "engine/sched/policy.c",
      "taken + 1 <= r->weight / weights * rows", "taken + 1 <= r->weight / weights * 0 * rows",
      "engine.test_policy", "each class has its share of every second")
_rule("policy.not-beyond-the-pace", "engine/sched/policy.c",
      "if (c.n > 0 && c.us + cost_of(&c, order[i]) > bound) break;", "if (bound < 0) break;",
      "engine.test_policy", "a step is no longer than the tightest stream's pace allows")
_rule("policy.hopeless-target", "engine/sched/policy.c",
      "if (alone <= target) longest = fmin(longest, allowed);", "longest = fmin(longest, allowed);",
      "engine.test_policy", "a target that is missed anyway holds up nobody")
_rule("policy.seat-keeps-pace", "engine/sched/policy.c",
      "if (sum > room) return SEAT_FULL;", "",
      "engine.test_policy", "no seat is given that costs a stream its pace")
_rule("policy.seat-thins", "engine/sched/policy.c",
      "return sum > room ? SEAT_THINS : SEAT_FITS;", "return SEAT_FITS;",
      "engine.test_policy", "streams of a class do not thin each other out")
_rule("policy.seats-leave-prompts-their-time", "engine/sched/policy.c",
      "fmin(1 / (1 + gentle), 1 - lim->prompts)", "fmin(1 / (1 + gentle), 1)",
      "engine.test_policy", "seats leave prompts the time that they have had")
_rule("policy.headroom", "engine/sched/policy.c",
      "return r->rich ? room * (1 - fmin(most_headroom, headroom / sqrt(n))) : room;", "return r->rich ? room * (1 - 0 * fmin(most_headroom, headroom / sqrt(n))) : room;",
      "engine.test_policy", "who has more than its share leaves room to others")
_rule("policy.headroom-by-the-root", "engine/sched/policy.c",
      "fmin(most_headroom, headroom / sqrt(n))", "fmin(most_headroom, headroom * n)",
      "engine.test_policy", "of many streams less of the room is left to others than of few")
_rule("policy.no-chunk-costs-the-pace", "engine/sched/policy.c",
      "if (of.kept || step_us > 0 || slack > base) *least = LEAST_KEPT;", "if (of.kept) *least = LEAST_KEPT;",
      "engine.test_policy", "no least chunk of a prompt costs streams their pace")
_rule("fair.rich", "engine/sched/fair.c",
      "double share = SCALE / (double)own->unit / weights;", "double share = 1 / weights;",
      "engine.test_fair", "a tenant's share of the seats is by its weight")
_rule("promise.crowded", "engine/sched/promise.c",
      "bool behind = o->crowded && ", "bool behind = o->crowded && o->n_tenant < 0 && ",
      "engine.test_promise", "where seats are for others alone, a flood is told how long it waits")
_rule("promise.fair-wait", "engine/sched/promise.c",
      "sum += fmin(work_before(o, i, slo), mine + o->quantum_us);", "sum += work_before(o, i, slo);",
      "engine.test_promise", "another tenant's flood does not count for one's own wait")
_rule("promise.flow-wait", "engine/sched/promise.c",
      "return (double)t->work_us[slo] / fmax(least_share, (double)t->share[slo]);",
      "return (double)t->work_us[slo] / fmax(least_share, 1);",
      "engine.test_promise", "a flow waits by the share that it had")
_rule("fair.own-target", "engine/sched/fair.c",
      "return (double)(j->deadline_us ? j->deadline_us - j->arrived_us", "return (double)(f->n_waiting < 0 ? j->deadline_us - j->arrived_us",
      "engine.test_fair", "a request is held to its tenant's own target")
_rule("targets.own", "storage/targets.c",
      "if (each.ttft_us) own.ttft_us = each.ttft_us;", "",
      "storage.test_targets", "a tenant's own target stands instead of the class's")
_rule("classes.sections-are-all", "gateway/config/config_read.c",
      "if (!r->sections) classes_clear(&c->classes);", "",
      "gateway.test_config", "a file with a class of its own has no others")
_rule("classes.one-owner", "gateway/config/classes.c",
      "if (other < 0) return ERR_NONE;", "if (word) return ERR_NONE;",
      "gateway.test_config", "a word asks for one class")
_rule("lengths.cut-is-no-end", "engine/sched/lengths.c",
      "(cut ? s->cut : s->ended)[bin_of(made)] += 1;", "(s->ended)[bin_of(made)] += 1;",
      "engine.test_lengths", "what was cut off would have been longer")
_rule("lengths.adapts", "engine/sched/lengths.c",
      "c->level += step * (wanted - held);", "",
      "engine.test_lengths", "the share that stays below the p90 is kept whatever the lengths do")
_rule("lengths.narrow-first", "engine/sched/lengths.c",
      "float share = (float)(w > borrowed ? borrowed / w : 1);", "float share = 1;",
      "engine.test_lengths", "of the wider sketch a narrower one borrows little")
_rule("lengths.used-stays", "engine/sched/lengths.c",
      "    if (i != NONE) {\n        use_unlink(l, i);", "    if (i != NONE) {\n        return &l->entries[i].s;",
      "engine.test_lengths", "the sketch that was used longest ago is forgotten first")
_rule("lengths.learnt", "engine/sched/sched_settle.c",
      "lengths_learn(sc->shared.lengths, &length, &rq->run.length, made, why != FINISH_STOP);", "(void)length;",
      "engine.test_sched", "answers that ended are learnt from")
_rule("lengths.charged", "engine/sched/sched.c",
      ".output = rq->run.length.mean};", ".output = rq->max_tokens};",
      "engine.test_sched", "a seat is charged what its answer will probably take")
_rule("promise.lower-classes", "engine/sched/promise.c",
      "if (o->rank[c] <= o->rank[slo])", "if (o->rank[c] <= o->rank[slo] + 100)",
      "engine.test_promise", "work of lower classes is not waited for")
_rule("promise.margin", "engine/sched/promise.c",
      "double most = margin * (double)ttft_us;", "double most = (margin + 0.2) * (double)ttft_us;",
      "engine.test_promise", "a part of the target is kept for what is not foreseen")
_rule("promise.begun-of-lower-classes", "engine/sched/promise.c",
      "if (o->rank[c] <= o->rank[a->slo]) begin += o->begun_us[c];", "begin += o->begun_us[c];",
      "engine.test_promise", "prompts that lower classes have begun are not waited for")
_rule("promise.large-first-refused", "engine/sched/promise.c",
      "return most / fmin(most_bulk, fmax(1, bulk * ask_us(o, a) / o->job_us));",
      "return most / fmin(1, fmax(most_bulk, bulk * ask_us(o, a) / o->job_us));",
      "engine.test_promise", "where a flow has a queue, who asks for much is refused sooner")
_rule("fair.prior-in-requests", "engine/sched/fair.c",
      "double prior_us = prior_jobs * mean_job_us(f);", "double prior_us = 0 * prior_jobs * mean_job_us(f);",
      "engine.test_fair", "a flow that was hardly seen is taken to have an equal share")
_rule("fair.sharers", "engine/sched/fair.c",
      "f->entries[j->adapter].running + (j->state != RUNNING);", "1 + 0 * j->state;",
      "engine.test_fair", "an adapter's bytes are counted once for all who share it")
_rule("cost.rescales", "engine/sched/cost.c",
      "if (is_astray && c->run_n >= agree && c->n >= c->rescaled + pause) {",
      "if (is_astray && c->run_n >= 1000 * agree && c->n >= c->rescaled + pause) {",
      "engine.test_lying_cost", "a model that is wrong by one factor is corrected at once")
_rule("cost.no-negative-terms", "engine/sched/cost.c",
      "double t = fmax(0, (c->fy[i]", "double t = fmax(-1e30, (c->fy[i]",
      "engine.test_cost", "more work never looks cheaper")
_rule("cost.relative-errors", "engine/sched/cost.c",
      "return ratio * ratio;", "return 1 + 0 * ratio;",
      "engine.test_cost", "errors count in proportion to the step")
_rule("cost.unseen-is-kept", "engine/sched/cost.c",
      "prior * last[i]", "0 * last[i]",
      "engine.test_cost", "what was not seen for long keeps its price")
_rule("cost.chunk-fits", "engine/sched/cost.c",
      "if (cost_predict(c, &sum) <= budget_us)", "if (cost_predict(c, &sum) <= 2 * budget_us)",
      "engine.test_cost", "a chunk is the most that fits into the time")
_rule("cost.pace", "engine/sched/cost.c",
      "c->pace + 0.06 * off", "c->pace + 0 * off",
      "engine.test_cost", "the model follows the pace of a shared machine")

# ---- a request's life in the scheduler ------------------------------------------------------------

_rule("spec.only-what-came", "engine/sched/sched_spec.c",
      "token == rq->out.token[n_pushed + k] &&", "token >= 0 * rq->out.token[n_pushed + k] &&",
      "engine.test_speculation", "a row behind a wrong guess does not count")
_rule("spec.draws-are-numbered", "engine/sched/sched_sample.c",
      "output_of(rq, beam), n_drawn(rq) + k, to);", "output_of(rq, beam), n_drawn(rq) + 0 * k, to);",
      "engine.test_speculation", "a guessed row has its own draw number and the text up to it")
_rule("spec.drawn-on-the-device", "engine/sched/sched_sample.c",
      ".n_output = n_drawn(rq) + k,", ".n_output = n_drawn(rq) + 0 * k,",
      "engine.test_speculation", "a guessed row has its own draw number where the device samples, too")
_rule("spec.never-past-the-end", "engine/sched/sched_spec.c",
      "rq->max_tokens - n_drawn(rq) - 1", "rq->max_tokens - n_drawn(rq)",
      "engine.test_speculation", "no more is guessed than may come")
_rule("spec.wrong-leaves-no-trace", "engine/sched/sched_settle.c",
      "rq->run.n_computed++;\n            sched_publish_pages(sc, rq, rq->run.n_computed - 1, rq->run.n_computed);",
      "rq->run.n_computed += f->row[s].n_guess;\n            sched_publish_pages(sc, rq, rq->run.n_computed - 1, rq->run.n_computed);",
      "engine.test_speculation", "positions of guesses that did not come are computed again")
_rule("spec.longest", "engine/sample/spec.c",
      "if (len > t->len) {", "if (len > 0 && t->len == 0) {",
      "engine.test_spec", "the longest match is taken")
_rule("spec.pays", "engine/sched/sched_spec.c",
      "if (sure * us < SCHED_MARGIN * *tokens *", "if (sure * us < 0 * SCHED_MARGIN * *tokens *",
      "engine.test_speculation", "where rows are dear nothing is guessed")
_rule("spec.form-behind-a-guess", "engine/grammar/grammar.c",
      "for (g->n = 0; g->n < g->most;) {", "for (g->n = 0; g->n < 1;) {",
      "engine.test_grammar", "where the form leaves one text behind another guess, that is guessed, too")
_rule("spec.form-ends-a-guess", "engine/grammar/grammar.c",
      "} else if (walk_token(", "} else if (!walk_token(",
      "engine.test_grammar", "what the form does not allow is not guessed")
_rule("schema.outermost-anchor", "engine/grammar/schema/grammar_refs.c",
      "if (outermost >= 0) i = outermost;", "(void)outermost;",
      "engine.test_refs", "a $dynamicRef means the outermost anchor of its name")
_rule("schema.documents-apart", "engine/grammar/schema/grammar_documents.c",
      "if (by_address(&d->list[i - 1], &d->list[i]) == 0)", "if (d->n < 0)",
      "engine.test_refs", "two documents never have one address")
_rule("schema.look-ahead-missed", "engine/grammar/regex/grammar_look.c",
      "return met != not ;", "return true;",
      "engine.test_grammar", "what a look-ahead must not find ends the text's way")
_rule("schema.turns-counted", "engine/grammar/regex/grammar_regex.c",
      "lay(l, x->a, loop, STEP_COUNT, back);", "lay(l, x->a, loop, STEP_PLAIN, back);",
      "engine.test_grammar", "a group's turns are counted")
_rule("schema.one-of", "engine/grammar/schema/grammar_branches.c",
      "if (k != i) shut_out(c, &b[i], b[k].said);", "if (k > n) shut_out(c, &b[i], b[k].said);",
      "engine.test_grammar", "oneOf is kept only where no two branches hold at once")
_rule("schema.joined-is-not-written", "engine/grammar/schema/grammar_apart.c",
      "p.holds |= schema_has_parts(a);", ";",
      "engine.test_grammar", "what another part joins to a member counts where branches are told apart")
_rule("schema.closed-part", "engine/grammar/schema/grammar_unevaluated.c",
      "if (rest) add_part(said, rest);", "cJSON_Delete(rest);",
      "engine.test_grammar", "unevaluatedProperties of a part closes out what later parts add")
_rule("schema.members-counted", "engine/grammar/schema/grammar_schema.c",
      "if (min > COUNTED_MAX) return schema_unsupported", "if (min > COUNTED_MAX) (void)schema_unsupported",
      "engine.test_grammar", "what minProperties counts is within the table of counts")
_rule("schema.seen-by-contains", "engine/grammar/schema/grammar_unevaluated.c",
      "cJSON *any = some ? cJSON_Duplicate(some, true) : NULL;", "cJSON *any = some ? NULL : NULL;",
      "engine.test_grammar", "items that `contains` counts are evaluated")
_rule("schema.contains-enough", "engine/grammar/schema/grammar_contains.c",
      "if (count_of(a, phase, k) < a->of[k].least) return false;",
      "if (count_of(a, phase, k) < 0) return false;",
      "engine.test_grammar", "an array ends when it contains what it must")
_rule("schema.contains-no-more", "engine/grammar/schema/grammar_contains.c",
      "if (full) return -1;", "if (full) out -= unit;",
      "engine.test_grammar", "an array contains no more than maxContains")
_rule("spec.unpaid-lessons", "engine/sample/spec.c",
      "if (all && t->len > 0) learn(", "if (all && t->len > 99) learn(",
      "engine.test_spec", "what is wrong again and again is believed no more")
_rule("draft.forgets", "engine/model/draft.c",
      "t->guess[0] != token", "t->guess[0] < 0 * token",
      "engine.test_draft", "what was proposed and did not come is forgotten")
_rule("draft.pays", "engine/sched/sched_draft.c",
      "b.gain * dr->us < SCHED_MARGIN * dr->tokens * all_us", "b.gain * dr->us < 0 * dr->tokens * all_us",
      "engine.test_sched_draft", "a draft model that costs more than it gains is not asked")
_rule("draft.learns", "engine/sample/spec.c",
      "if (all) learn(t, all, SPEC_DRAFT, right);", "if (all && right) learn(t, all, SPEC_DRAFT, right);",
      "engine.test_sched_draft", "a draft model that is always wrong is believed no more")
_rule("draft.is-tried", "engine/sched/sched_draft.c",
      "if (c.n == 0 && !always) c = try_one(", "if (c.n == 0 && always) c = try_one(",
      "engine.test_sched_draft", "a draft model that was bad comes back")
_rule("draft.within-the-slack", "engine/sched/sched_draft.c",
      "if (dr->us + us + b.read_us > bound_us) break;", "if (dr->us + us > bound_us + 1e9) break;",
      "engine.test_sched_draft", "nobody's token is late for a draft model's pass")
_rule("draft.leaves-with-its-seat", "engine/sched/sched_spec.c",
      "    sched_draft_leave(sc, rq);\n", "",
      "engine.test_sched_draft", "a request's text leaves the draft model's pages with it")
_rule("draft.reads-what-it-knows", "engine/sched/sched_draft.c",
      "if (history_at(rq, i) >= n_vocab) return false;", "if (history_at(rq, i) >= 2 * n_vocab) return false;",
      "engine.test_sched_draft", "a token that the draft model does not have is not fed to it")
_rule("draft.same-vocabulary", "engine/text/tokenizer_piece.c",
      "if (n_a != n_b || memcmp(a, b, (size_t)n_a) != 0)", "if (n_a > 99 && n_b > 99 && memcmp(a, b, (size_t)n_a) != 0)",
      "engine.test_tokenizer", "a draft model of another vocabulary is refused")
_rule("flight.needs-the-host", "engine/sched/sched_flight.c",
      "(draws && (rq->grammar || penalties || reads))", "(draws && rq->grammar && penalties && reads)",
      "engine.test_sched", "a row whose next token hangs on the text waits for it")
_rule("flight.holds-pages", "engine/sched/sched_flight.c",
      "if (f->row[s].owner != rq) continue;", "if (f->row[s].owner != rq || rq) continue;",
      "engine.test_sched", "what a step in flight uses stays until it is over")
_rule("settle.stop-ids", "engine/sched/sched_settle.c",
      "bool over = is_stop(rq, token) || ", "bool over = (is_stop(rq, token) && !rq) || ",
      "engine.test_sched", "a stop token ends the answer")
_rule("settle.max-tokens", "engine/sched/sched_settle.c",
      "bool full = n >= rq->max_tokens;", "bool full = n + 1 >= rq->max_tokens;",
      "engine.test_sched", "max_tokens ends the answer")
_rule("settle.whole-pages-only", "engine/sched/sched_settle.c",
      "(p + 1) * sc->mem.page_tokens <= end; p++", "p * sc->mem.page_tokens < end; p++",
      "engine.test_sched", "only full pages can be found by their content")
_rule("settle.broken-not-cached", "engine/sched/sched_settle.c",
      "if (page[i] != KV_GONE) kv_forget(sc->mem.pages, page[i]);", ";",
      "engine.test_sched", "pages of broken numbers are given to nobody else")
_rule("settle.meters-each-token", "engine/sched/sched_settle.c",
      "atomic_fetch_add(&rq->meter->output_tokens, (uint32_t)n);", "",
      "engine.test_sched", "each token is metered before it is handed out")
_rule("beam.copy-on-write", "engine/sched/sched_beam.c",
      "be_kv_copy(sc->be, sc->mem.kv, *at, page);", "",
      "engine.test_beams", "beams that part write to pages of their own")
_rule("beam.forms-part", "engine/sched/sched_beam.c",
      "if (i < live) grammar_run_copy(made[i], had[parent[i]]);", "",
      "e2e.test_beams", "each beam has its own place in the form of the answer")
_rule("plan.swapped-comes-back", "engine/sched/sched_plan.c",
      "rq->run.n_computed = kept;\n    fair_back", "rq->run.n_computed = 0 * kept;\n    fair_back",
      "engine.test_sched", "what was swapped out is not computed again")
_rule("plan.cheaper-way", "engine/sched/sched_plan.c",
      "swap_round_trip_us(sc->mem.swap, n_page) < recompute", "swap_round_trip_us(sc->mem.swap, n_page) > recompute",
      "engine.test_sched", "a pre-empted request goes on in the cheaper way")
_rule("plan.could-ever-fit", "engine/sched/sched_plan.c",
      "most <= sc->mem.n_pages - adapter", "most <= sc->mem.n_pages",
      "engine.test_sched", "what can never fit beside its adapter is refused at once")
_rule("plan.vocabulary-of-the-adapter", "engine/sched/sched_plan.c",
      "if (rc == ERR_NONE && rq->run.lora->n_vocab == rq->n_vocab) return true;", "if (rc == ERR_NONE) return true;",
      "engine.test_sched", "an adapter of another vocabulary than promised serves nobody")
_rule("sched.clients-patience", "engine/sched/sched.c",
      "!rq->times.first_token_us && now > rq->patience_us", "!rq->times.first_token_us && now < 0 * rq->patience_us",
      "engine.test_sched", "who has stopped waiting is not served")
_rule("sched.expiry", "engine/sched/sched.c",
      "rq->expires_us && now > rq->expires_us", "rq->expires_us && now < 0 * rq->expires_us",
      "engine.test_sched", "a request ends at its last moment")

# ---- the prefix cache and memory ------------------------------------------------------------------

_rule("kv.cache-of-the-adapter", "engine/sched/sched_inside.h",
      "memcpy(d->digest, rq->run.lora->digest, sizeof(d->digest));", "",
      "engine.test_sched", "pages of one adapter are no other's")
_rule("kv.cache-of-the-tenant", "engine/sched/sched_inside.h",
      "*d = (kv_domain){.isolation = rq->isolation};", "*d = (kv_domain){.isolation = 0 * rq->isolation};",
      "engine.test_sched", "pages of one tenant are no other's")
_rule("kv.isolation-of-the-tenant", "gateway/openai/completion_choice.c",
      "memcpy(text, &c->x->caller->tenant.id, 8);", "memset(text, 0, 8);",
      "e2e.test_fields", "two tenants' requests are in two domains")
_rule("kv.isolation-of-the-salt", "gateway/openai/completion_choice.c",
      "digest_bytes(text, 8 + len, digest);", "digest_bytes(text, 8 + 0 * len, digest);",
      "e2e.test_fields", "cache_salt parts the cache")
_rule("kv.parent-compared", "engine/memory/kv.c",
      "p->parent_serial == kv->page[parent].serial);", "p->parent_serial != 0);",
      "engine.test_kv", "a page continues the one that it was computed behind")
_rule("kv.tokens-compared", "engine/memory/kv.c",
      "tokens, bytes) == 0) return i;", "tokens, bytes) <= 1 << 30) return i;",
      "engine.test_kv", "equal hashes of two texts are no hit")
_rule("kv.part-compared", "engine/memory/kv.c",
      "while (k < n && own[k] == tokens[k]) k++;", "while (k < n) k++, (void)own, (void)tokens;",
      "engine.test_prefix engine.test_kv", "of a page in which texts part only the shared tokens are taken over")
_rule("resident.drops-behind", "engine/model/resident.c",
      "        leave_locked(r, r->current);\n", "",
      "engine.test_resident", "a layer that is streamed leaves memory when it has been used")
_rule("resident.frequent-stay", "engine/model/resident.c",
      "if (!u->kept || u->count >= count || in_use(r, i)) continue;", "if (!u->kept || in_use(r, i)) continue;",
      "engine.test_resident", "the most frequently used experts stay in memory")
_rule("attend.cells-in-order", "engine/cpu/attend_kernels.h",
      "char *k_to = to->k + (size_t)at * (size_t)quad * each;", "char *k_to = to->k + (size_t)(PAGE - cell - at) * (size_t)quad * each;",
      "cpu.test_kernels", "a page's size does not change attention")
_rule("kv.bare-before-the-adapter", "engine/memory/kv.c",
      "if (index < d->from / kv->page_tokens)", "if (index <= d->from / kv->page_tokens)",
      "engine.test_kv", "a page in which an adapter begins is not the base's")
_rule("snapshot.goes-with-its-page", "engine/memory/kv.c",
      "if (kv->states) snapshots_drop(kv->states, i);", "",
      "engine.test_kv", "a page that is not in the cache has no snapshot of a state")
_rule("snapshot.at-the-end", "engine/memory/kv.c",
      "return *slot == NONE ? 0 : n + 1;", "return *slot == NONE ? 0 : n + 1 + (n > 1);",
      "engine.test_kv engine.test_states", "a prefix is continued exactly where the snapshot was taken")
_rule("snapshot.page-of-the-first", "engine/memory/kv.c",
      "        pages[index] = first;", "        pages[index] = own;",
      "engine.test_kv", "who computed a page twice goes on behind the published one")
_rule("snapshot.least-recent", "engine/memory/snapshot.c",
      "if (t->slot[i].used < t->slot[least].used) least = i;", "if (t->slot[i].used > t->slot[least].used) least = i;",
      "engine.test_kv", "the snapshot that was used longest ago is evicted first")
_rule("snapshot.restored", "engine/sched/sched_plan.c",
      "if (snapshot >= 0 && !loaded) sched_snapshot_restore(sc, rq, snapshot);", "(void)loaded;\n    (void)snapshot;",
      "engine.test_states", "a prefix is continued with the state that was there")
_rule("snapshot.chunk-ends", "engine/sched/sched_state.c",
      "return rq->run.snapshot_at > 0 && n > most ? most : n;", "return n > most + n ? most : n;",
      "engine.test_states", "a chunk ends where a snapshot is taken")
_rule("snapshot.branch", "engine/sched/sched_state.c",
      "if (rq->run.branch > at && rq->run.branch >= least)", "if (rq->run.branch < 0 && rq->run.branch >= least)",
      "engine.test_states", "a prefix that comes twice gets a snapshot at its branch")
_rule("undo.restored", "engine/sched/sched_state.c",
      "if (undone) rq->run.state_slot = rq->run.state_spare;", "",
      "engine.test_states", "behind a wrong draft token the state is the one before the step")
_rule("undo.computed-again", "engine/sched/sched_settle.c",
      "if (f->row[s].undone) rq->run.n_computed -= f->row[s].chunk;", "",
      "engine.test_states", "with the state the accepted rows go back, too")
_rule("undo.not-past-a-snapshot", "engine/sched/sched_spec.c",
      "most = least_of(most, rq->run.snapshot_at - (rq->run.n_computed + 1));", "most = least_of(most, most);",
      "engine.test_states", "draft tokens end where a snapshot is taken")
_rule("undo.no-prompt", "engine/sched/sched_settle.c",
      "rq->run.replays = f->row[s].undone || (rq->run.replays && !f->row[s].ends);", "",
      "engine.test_states", "rows that are computed again behind wrong draft tokens are decode rows")
_rule("undo.priced", "engine/sched/sched_spec.c",
      "if (copy_us >= 0) more_us += copy_us + (1 - sure) * (more_us - before_us);", "(void)copy_us, (void)before_us;",
      "engine.test_speculation", "a copy of a state and rows computed again have a price")
_rule("kv.shared-before-the-adapter", "engine/sched/sched_inside.h",
      "d->from = rq->adapter_from;", "d->from = 0;",
      "e2e.test_alora", "what lies before an activated adapter is shared with the base")
_rule("adapter.effect", "adapters/format/validate.c",
      "(none || !al->peft.layer[slot].wrapped);", "none;",
      "e2e.test_stacks", "an adapter all of whose products are zero says that it has no effect")
_rule("split.in-both", "engine/text/split_inside.h",
      "if (in == k->negated || !k->within)", "if (in == k->negated || k->within)",
      "engine.test_split", "a character of [a&&[b]] is in both")
_rule("gguf.gemma-norms", "engine/model/model_weights.c",
      "f->one_plus && !model_files_stacks(l->files)", "f->one_plus",
      "adapters.test_golden", "norms of a Gemma's GGUF hold the weights and not what is to be added to one")
_rule("gguf.fused-rows", "engine/model/model_files.c",
      "out->part[0].data += each * (uint64_t)at->first;", "",
      "adapters.test_golden", "a fused matrix of a GGUF is taken apart by its rows")
_rule("gguf.query-scalar", "engine/files/gguf_config.c",
      "is_wide ? wide : key", "!is_wide ? wide : key",
      "adapters.test_golden", "a Gemma's scores are scaled by a head's length, but of the one model")
_rule("gguf.turned", "engine/model/model_files.c",
      '"smollm3",', '"none",',
      "adapters.test_golden", "queries and keys of a llama's kin lie in pairs in a GGUF")
_rule("gguf.tiles", "engine/model/stored.h",
      "head % t->each * t->groups + head / t->each", "head",
      "adapters.test_golden", "heads of values that share keys lie group by group here, and in turns in a GGUF")
_rule("gguf.decay", "engine/model/stored.c",
      "(float)log(-(double)out[i])", "out[i]",
      "adapters.test_golden", "a GGUF has a decay as its negative exponential")
_rule("gguf.joined", "engine/model/stored.c",
      "&s->half[part == 3]", "&s->half[0]",
      "adapters.test_golden", "gates of a Qwen3-Next's groups are a matrix of their own in a GGUF")
_rule("gguf.mixers", "engine/files/gguf_config.c",
      "k < 3 ? m->of->other", "k < 2 ? m->of->other",
      "adapters.test_golden", "the tensors of a GGUF tell which mixer a layer has")
_rule("gguf.kinds", "engine/files/gguf_config.c",
      '"head_dim", (double)swa)', '"head_dim", (double)key)',
      "adapters.test_golden", "a Gemma 4's layers with a window have heads of their own length")
_rule("gguf.halves", "engine/model/stored.c",
      "key[row - head * each];", "key[0];",
      "engine.test_quant adapters.test_golden", "a head's keys are the columns of their matrix, its values the rows of another")
_rule("gguf.mxfp4", "engine/model/stored_ggml.c",
      "ldexpf(1, b.p[0] - 128)", "ldexpf(1, b.p[0] - 127)",
      "engine.test_quant adapters.test_golden", "a byte of MXFP4 is a power of two beside twice the values")
_rule("gguf.gating", "engine/files/gguf_config.c",
      "if (!sigmoid && gating != GATING_SOFTMAX)", "if (!sigmoid && gating == 0)",
      "engine.test_quant", "a router's scores that are neither a softmax nor a sigmoid are refused")
_rule("gguf.weights-scale", "engine/files/gguf_config.c",
      "scale == 0 ? 1 : scale", "1",
      "adapters.test_golden", "a DeepSeek's weights have the factor that its file tells")
_rule("gguf.groups", "engine/files/gguf_config.c",
      "groups[i] ? (double)groups[i] : 1", "1",
      "adapters.test_golden", "a DeepSeek's experts stand in the groups that its file tells")
_rule("gguf.yarn-original", "engine/files/gguf_config.c",
      "if (!rc && original > 0 &&", "if (!rc && original > 1 << 20 &&",
      "adapters.test_golden", "YaRN's borders are those of the length of training")
_rule("gguf.yarn-multiplier", "engine/files/gguf_config.c",
      "m->of->latent ? 0.1 : 1", "m->of->latent ? 0.2 : 1",
      "adapters.test_golden", "a DeepSeek's file has a tenth of mscale_all_dim")
_rule("gguf.whole-ramp", "engine/files/gguf_config.c",
      "if (!rc && m->of->whole_ramp &&", "if (!rc && !m->of &&",
      "engine.test_quant", "a GPT-OSS' borders of YaRN are not rounded")
_rule("gguf.expert-bias", "engine/model/model_weights.c",
      '"ffn_gate_exps.bias", "ffn_up_exps.bias"', '"ffn_up_exps.bias", "ffn_gate_exps.bias"',
      "adapters.test_golden", "each projection of experts has its own biases in a GGUF")
_rule("gguf.unit-keys", "engine/files/gguf_config.c",
      "experts != 128", "experts == 128",
      "adapters.test_golden", "queries and keys of a Llama 4 are normed, but those of one with 128 experts")
_rule("gguf.long-factors", "engine/files/gguf_config.c",
      '"rope_factors_long.weight", "long_factor"', '"rope_factors_short.weight", "long_factor"',
      "adapters.test_golden", "longrope's two lists of factors are two tensors")
_rule("gguf.pattern", "engine/files/gguf_config.c",
      "key->at[i] != 0", "key->at[i] == 0",
      "adapters.test_golden", "a flag says that a layer has a window")
_rule("push.goes-with-its-last-hold", "adapters/store/registry.c",
      "v->pins == 0 && v->outlived &&", "v->pins < 0 && v->outlived &&",
      "adapters.test_registry", "an old version that was in use goes when it is no more")
_rule("push.named-meanwhile-stays", "adapters/store/registry_change.c",
      "v->state == ADAPTER_READY &&\n                !alias_of(v->owner, v->pub.version);", "v->state == ADAPTER_READY;",
      "adapters.test_registry", "an old version that an alias names meanwhile stays")
_rule("push.filled", "adapters/store/copy.c",
      "fd, 0);\n    if (file == MAP_FAILED)", "fd, 4096);\n    if (file == MAP_FAILED)",
      "adapters.test_residency", "what is loaded of a published file's pages is what its file has")
_rule("push.effect-measured", "gateway/rest/effect.c",
      "rq.adapter_id = version_id;", "rq.adapter_id = 0 * version_id;",
      "e2e.test_push", "what a version changes is measured with the version")
_rule("push.in-use-stays", "adapters/store/registry_change.c",
      "if (v->pins > 0) continue;", "",
      "adapters.test_registry", "a version that a request uses is not pruned")
_rule("push.own-folder", "adapters/format/folder.c",
      "bool ok = (found ||", "own = NULL;\n    bool ok = (found ||",
      "adapters.test_upload", "of a root a tenant reads its own folder alone")
_rule("sampler.processed", "engine/sample/sampler.c",
      "logits[i] = in ? logits[i] / r->temperature : -INFINITY;", "logits[i] = in ? logits[i] : -INFINITY;",
      "engine.test_sampler", "processed log-probabilities are of what is drawn from")
_rule("stack.scales-in-key", "adapters/store/stacks.c",
      "digest_add(&d, le, sizeof le);", "digest_add(&d, le, 0 * sizeof le);",
      "e2e.test_stacks", "pages of a stack are those of its scales")
_rule("stack.weight", "adapters/residency/stacked.c",
      "float scale = share * part->peft.layer[slot].scale;",
      "float scale = (float)(share != 0) * part->peft.layer[slot].scale;",
      "e2e.test_stacks", "each adapter of a stack has its weight")
_rule("stack.plain-parts", "adapters/residency/load.c",
      "if (!rc) rc = stacked_check(&p->layout, env->base, e);", "",
      "e2e.test_stacks", "what is not the sum of products is in no stack")
_rule("stack.pins", "adapters/store/stacks.c",
      "for (int i = 0; i < n->pub.n; i++) n->pub.part[i].v = p->v[i];\n    p->n = 0;",
      "for (int i = 0; i < n->pub.n; i++) n->pub.part[i].v = p->v[i];",
      "adapters.test_stacks", "a stack that is held pins its parts")
_rule("alora.cut", "engine/sched/sched_plan.c",
      "int bare = rq->adapter_from - rq->run.n_computed;", "int bare = 0;",
      "e2e.test_alora", "rows before an adapter's invocation run bare")
_rule("alora.last", "gateway/openai/vocabulary.c",
      "for (int at = n_prompt - v->n_invocation; at >= 0; at--) {",
      "for (int at = 0; at <= n_prompt - v->n_invocation; at++) {",
      "e2e.test_alora", "the last invocation counts")
_rule("kv.something-is-left", "engine/memory/kv.c",
      "(n + 1) * kv->page_tokens < n_tokens", "(n + 1) * kv->page_tokens <= n_tokens",
      "engine.test_kv", "the last token is always computed")
_rule("kv.forgotten", "engine/memory/kv.c",
      "if (kv->page[page].published) unpublish(kv, page);", "",
      "engine.test_kv", "a page that is forgotten is never handed out")
_rule("devmem.ranks", "engine/memory/devmem.c",
      "int rank = need == DEVMEM_DEMAND ? PREFETCHED : IDLE;", "int rank = PREFETCHED;",
      "engine.test_devmem", "a hint evicts nothing that is wanted")
_rule("devmem.reserve", "engine/memory/devmem.c",
      "- (fresh ? a->reserved : 0);", "- (fresh ? 0 : 0);",
      "engine.test_devmem", "new sequences leave the room that was reserved")
_rule("devmem.claims", "engine/memory/devmem.c",
      "a->n_free + a->pages.n + idle - a->claimed < n", "a->n_free + a->pages.n + idle < n",
      "engine.test_devmem", "claimed pages are no adapter's")
_rule("devmem.pinned", "engine/memory/devmem.c",
      "if (--l->holds == 0 && !l->pinned) lease_to_heap(l, IDLE);", "if (--l->holds == 0) lease_to_heap(l, IDLE);",
      "engine.test_devmem", "a pinned adapter is not evicted")
_rule("residency.nearest-deadline", "adapters/residency/residency_tables.c",
      "while (after && after->due_us > en->due_us) after = after->prev;", "",
      "adapters.test_residency", "the adapter that is due first is loaded first")
_rule("residency.deleted", "adapters/residency/residency.c",
      "if (en->gone || en->closing) left_device(rs, en);", "if (en->closing) left_device(rs, en);",
      "adapters.test_residency", "a deleted adapter leaves the device with its last request")
_rule("residency.damaged-files", "adapters/residency/load.c",
      "if (!rc && !digest_same(got, ld->v->digest, DIGEST_BYTES))",
      "if (!rc && ld->own_copy && !digest_same(got, got, DIGEST_BYTES))",
      "adapters.test_residency", "files that changed on the disk are not served")

# ---- tenants, keys, scopes ------------------------------------------------------------------------

_rule("registry.others-adapters", "adapters/store/registry.c",
      "owner_id != tenant_id && !any_tenant && !entry_shared_with(en, tenant_id)", "owner_id == 0 && !any_tenant",
      "adapters.test_registry", "another tenant's adapter does not exist")
_rule("registry.shared-with", "adapters/store/registry_tables.c",
      "if (en->shared[i] == tenant_id) return true;", "return true;",
      "adapters.test_registry", "what is shared with one is not shared with all")
_rule("registry.lists-by-tenant", "adapters/store/registry_tables.c",
      "if (a->tenant_id != tenant_id) return a->tenant_id < tenant_id ? -1 : 1;", "(void)tenant_id;",
      "adapters.test_registry", "a list has one tenant's names")
_rule("registry.draining", "adapters/store/registry.c",
      "} else if (v->state != ADAPTER_READY) {", "} else if (v->state == ADAPTER_FAILED) {",
      "adapters.test_registry", "a deleted version takes nobody new")
_rule("registry.if-match", "adapters/store/registry_change.c",
      "if (expected < 0 || (uint64_t)expected == is) return ERR_NONE;", "if (expected < 0 || is) return ERR_NONE;",
      "adapters.test_registry", "who saw an older state does not overwrite a newer")
_rule("registry.alias-in-the-way", "adapters/store/registry_change.c",
      "if (en->alias[i].version == number)", "if (en->alias[i].version == -number)",
      "adapters.test_registry", "a version that an alias names is not deleted")
_rule("keys.revoked-is-out", "storage/keys.c",
      "ok = matches(k, got, now_us) && k->info.revoked_wall_us == 0;", "ok = matches(k, got, now_us);",
      "storage.test_keys", "a revoked key opens nothing")
_rule("keys.expired", "storage/keys.c",
      "if (out->expires_wall_us != 0 && now_us >= out->expires_wall_us)",
      "if (out->expires_wall_us != 0 && now_us >= INT64_MAX)",
      "storage.test_keys gateway.test_auth", "an expired key opens nothing")
_rule("keys.rotated", "storage/keys.c",
      "digest_same(k->secret[i].digest, got, DIGEST_BYTES) & live(&k->secret[i], now_us);",
      "digest_same(k->secret[i].digest, got, DIGEST_BYTES);",
      "storage.test_keys", "the old secret ends with its grace")
_rule("keys.suspended-tenant", "storage/keys.c",
      "&t, NULL) != ERR_NONE || t.disabled)", "&t, NULL) != ERR_NONE)",
      "storage.test_keys gateway.test_auth", "a suspended tenant's keys open nothing")
_rule("keys.no-admin-for-tenants", "storage/keys.c",
      "if (admin && want->tenant_id != 0)", "if (admin && want->tenant_id == 1)",
      "storage.test_keys", "a tenant's key is never an operator's")
_rule("auth.scopes", "gateway/auth.c",
      "if (info.scopes & scope) return true;", "if (info.scopes | scope) return true;",
      "gateway.test_auth", "a key does what its scopes say")
_rule("auth.ambiguous", "gateway/auth.c",
      "if (key && strcmp(key, v) != 0) *ambiguous = true;", "",
      "gateway.test_auth", "two different keys are refused")
_rule("auth.models", "gateway/auth.c",
      "return list_allows(x->caller->tenant.models, bare);",
      "return list_allows(x->caller->tenant.models, bare) || bare[0];",
      "gateway.test_auth", "a tenant uses the models on its list")
_rule("auth.networks-of-the-key", "gateway/auth.c",
      "(!x->caller->key.networks[0] || networks_hold(x->caller->key.networks, &from))",
      "(!x->caller->key.networks[0] || from.bits)",
      "gateway.test_auth", "a key works from its networks alone")
_rule("plain.only-its-networks", "gateway/net/lobby.c",
      "else if (!v->tls && !l->o.takes_plain(l->o.arg, &v->peer))", "else if (false)",
      "e2e.test_gateway", "connections without TLS are taken from server.plain_networks alone")
_rule("route.probes-for-pickers", "gateway/route.c",
      "if (!networks_hold(x->conf->metrics.inference_networks, &x->peer)) return NULL;", ";",
      "e2e.test_gateway", "the inference plane shows metrics to metrics.inference_networks alone")
_rule("targets.never-shorter", "gateway/openai/completion_choice.c",
      "if (ttft > t.ttft_us) t.ttft_us = ttft;", "t.ttft_us = ttft;",
      "e2e.test_gateway", "a header gives a request no shorter target than its class's")
_rule("metrics.idle-adapters", "gateway/watch/metrics_vllm.c",
      "    add_resident(running, v);\n", "",
      "e2e.test_gateway", "an adapter that is idle and resident is told to pickers")
_rule("traces.callers-flag", "gateway/watch/spans.c",
      "return hex_value(t->flags, t->flags + 2, 2) & SAMPLED;", "return true;",
      "gateway.test_spans", "a caller's sampled flag decides whether a request is traced")
_rule("traces.submitted-first", "gateway/openai/completion_choice.c",
      "c->times.submitted_us = now;", "c->times.submitted_us = now + 5000;",
      "e2e.test_traces", "a request is with the scheduler before it can have a seat")
_rule("traces.never-wait", "gateway/watch/spans.c",
      "s->n_put - s->n_taken == SPANS_MAX", "s->n_put - s->n_taken == 4 * SPANS_MAX",
      "gateway.test_spans", "what finds the ring of traces full is dropped and counted")
_rule("traces.tried-again", "gateway/watch/spans.c",
      "return status == 0 || status == 429 || status == 502 || status == 503 || status == 504;", "return false;",
      "e2e.test_traces", "traces for a collector that is away for a moment are kept")
_rule("route.write-needs-write", "gateway/route.c",
      '{"DELETE", "/v1/adapters/{}", WRITE, adapters_delete},', '{"DELETE", "/v1/adapters/{}", READ, adapters_delete},',
      "gateway.test_route", "what changes something needs a scope that may")
_rule("route.lookers-change-nothing", "gateway/route.c",
      '{"POST", "/admin/v1/keys", ADMIN, admin_key_create},', '{"POST", "/admin/v1/keys", LOOK, admin_key_create},',
      "gateway.test_route", "who may only look creates no keys")
_rule("inflight.stops-its-own", "gateway/inflight.c",
      "(tenant_id && e->info.tenant_id == tenant_id)", "(tenant_id && e->info.tenant_id)",
      "gateway.test_inflight", "a tenant that is shut out takes nobody with it")
_rule("tenants.newest-wins", "storage/tenants.c",
      '" WHERE tenants.generation < excluded.generation"', '" WHERE 1"',
      "storage.test_lockouts storage.test_keys", "a change that began earlier does not undo a suspension")
_rule("lockouts.outlive-a-kill", "storage/lockouts.c",
      "lo->ticket[i] = ++lo->last_ticket;\n            lo->n++;", "",
      "storage.test_lockouts", "a kill brings nobody back")
_rule("staging.of-its-tenant", "adapters/store/staging.c",
      "while (s && (s->tenant_id != tenant_id || strcmp(s->id, id) != 0", "while (s && (strcmp(s->id, id) != 0",
      "adapters.test_staging", "an upload is its tenant's alone")
_rule("staging.others-files", "storage/adapter_rows.c",
      '" WHERE v.weights_sha=? AND a.tenant_id=? AND v.state=? LIMIT 1"',
      '" WHERE v.weights_sha=? AND a.tenant_id<>-? AND v.state=? LIMIT 1"',
      "adapters.test_staging", "a manifest does not tell what others have")

# ---- limits ---------------------------------------------------------------------------------------

_rule("limits.requests", "gateway/limits.c",
      "if (rpm > 0 && a->requests.level < 1) {", "if (rpm > 0 && a->requests.level < 0) {",
      "gateway.test_limits", "requests per minute")
_rule("limits.concurrent", "gateway/limits.c",
      "if (concurrent > 0 && a->running >= concurrent) {", "if (concurrent > 0 && a->running > concurrent) {",
      "gateway.test_limits", "concurrent requests")
_rule("limits.tokens", "gateway/limits.c",
      "if (a->tokens.level < (double)tokens) {", "if (a->tokens.level < 0) {",
      "gateway.test_limits", "tokens per minute are reserved in full")
_rule("limits.settled-once", "gateway/limits.c",
      "if (!ticket->held) return;", "",
      "gateway.test_limits", "a request is given back once")
_rule("limits.of-the-key", "gateway/limits.c",
      "check_rates(of->of[OF_KEY], key->requests_per_minute, key->tokens_per_minute,",
      "check_rates(of->of[OF_KEY], 0 * key->requests_per_minute, 0 * key->tokens_per_minute,",
      "gateway.test_limits", "a key's own limits count")
_rule("limits.of-that-day", "gateway/limits.c",
      "if (day == a->now.day)", "if (day == a->now.day || day == a->before.day)",
      "gateway.test_limits", "what ran before midnight is settled there")
_rule("limits.new-month", "gateway/limits.c",
      "if (stays) next.month_used = a->now.month_used;", "",
      "gateway.test_limits", "the month's budget outlives the day")
_rule("limits.unknown-is-not-free", "gateway/limits.c",
      "if (!known && (tl->tokens_per_day > 0 || tl->tokens_per_month > 0)) return unknown(why);", "(void)known;",
      "gateway.test_limits", "a budget that cannot be read is not free")
_rule("limits.queued", "gateway/limits.c",
      "if (t->max_queued <= 0 || atomic_load(&a->queued) < t->max_queued) return true;",
      "if (t->max_queued <= 0 || atomic_load(&a->queued) <= t->max_queued) return true;",
      "gateway.test_limits", "queued requests")
_rule("limits.refill-is-capped", "gateway/limits.c",
      "if (!(b->level < full)) b->level = full;", "if (b->level > 2 * full) b->level = 2 * full;",
      "gateway.test_limits", "a bucket holds one minute's worth")

# ---- ledger, spool, meter, backup -----------------------------------------------------------------

_rule("ledger.once", "storage/ledger.c",
      "return !rc && fresh ? add_to_day(", "return !rc ? add_to_day(",
      "storage.test_ledger", "a request counts once, however often it is settled")
_rule("ledger.months", "storage/ledger.c",
      "*first = today - (tm.tm_mday - 1);", "*first = today - 30 + 0 * tm.tm_mday;",
      "storage.test_ledger", "a month's budget begins with the month")
_rule("ledger.pruned-adds-up", "storage/ledger.c",
      '" ON CONFLICT DO UPDATE SET n_requests=n_requests+excluded.n_requests,"',
      '" ON CONFLICT DO UPDATE SET n_requests=excluded.n_requests,"',
      "storage.test_ledger", "rows that are summed up by hour change no sum")
_rule("meter.ended-row-stands", "storage/meter_file.c",
      "if (sound && end_is_sound(s)) {", "if (sound && !state) {",
      "storage.test_settler storage.test_ledger", "an ended row is settled as it ended")
_rule("meter.prompt-once", "storage/meter_file.c",
      "if (o->choice == 0) {", "if (o->choice >= 0) {",
      "storage.test_ledger", "a prompt is paid once, however many choices it has")
_rule("meter.torn-slot", "storage/meter_file.c",
      "bool sound = (state == SLOT_USED || state == SLOT_ENDED) &&", "bool sound = true ||",
      "storage.test_ledger", "a torn slot bills nobody")
_rule("meter.spool-is-bounded", "storage/meter_file.c",
      "bool full = mf->n_ended >= mf->spool_max,", "bool full = mf->n_ended > mf->spool_max + 4,",
      "storage.test_settler", "a full spool takes no new requests")
_rule("settler.retries", "storage/settler.c",
      "if (!rc) {\n            drop_locked(s, n);", "if (rc || s) {\n            drop_locked(s, n);",
      "storage.test_settler", "what the database refused stays in the spool")
_rule("settler.nobody-waits", "storage/settler.c",
      "while (s->n_settled < turn && s->behind_since_us == 0) {", "while (s->n_settled < turn) {",
      "storage.test_settler", "an answer does not wait for a database that is behind")
_rule("backup.private", "storage/backup.c",
      "O_NOFOLLOW | O_CLOEXEC, 0600);", "O_NOFOLLOW | O_CLOEXEC, 0644);",
      "storage.test_store", "a backup is its owner's alone")
_rule("backup.offline-adapters", "gateway/offline_backup.c",
      'if (!rc) rc = copy_tree(data_dir, "adapters", to, out, e);', "",
      "e2e.test_service", "an offline backup has the adapters")
_rule("backup.offline-settles", "gateway/offline_backup.c",
      "rc = meter_file_recover(st, &out->settled, e);", "",
      "e2e.test_service", "an offline backup has what a crash left in the spool")
_rule("reserve.only-on-a-full-disk", "storage/reserve.c",
      "if (!reserve_held(r) || disk_has_room(r)) return false;", "if (!reserve_held(r)) return false;",
      "storage.test_reserve", "the reserve is kept as long as there is room")

# ---- kernels --------------------------------------------------------------------------------------

_rule("attend.rescales", "engine/cpu/attend_kernels.h",
      "part->sum[r] *= c[0];", "part->sum[r] *= 1;",
      "cpu.test_kernels", "softmax is rescaled where the maximum grows")
_rule("attend.masked", "engine/cpu/attend_kernels.h",
      "for (int i = hi; i < PAGE; i++) s[i] = -INFINITY;", "for (int i = hi; i < PAGE; i++) s[i] = 0;",
      "cpu.test_kernels", "positions to come are not attended to")
_rule("attend.merge", "engine/cpu/attend_kernels.h",
      "vf_exp(vf_set(into->max[r] - top))", "vf_exp(vf_set(0 * top))",
      "cpu.test_kernels", "splits are merged by their maxima")
_rule("attend.window", "engine/cpu/attend_kernels.h",
      "return from > base ? from - base : 0;", "return from > base ? 0 : 0;",
      "cpu.test_kernels", "a sliding window ends where it ends")
_rule("attend.rope", "engine/cpu/attend_kernels.h",
      "x[i * each + apart] = b * cos[i] + a * sin[i];", "x[i * each + apart] = b * cos[i] - a * sin[i];",
      "cpu.test_kernels engine.test_conformance", "rotary positions")
_rule("attend.bf16-keys", "engine/cpu/attend.c",
      "h[i * apart] = bf16_from_f32(x[i]);", "h[i * apart] = bf16_from_f32(x[i]) & 0xFFF0;",
      "cpu.test_kernels", "keys are rounded to bf16 and no further")
_rule("rows.silu", "engine/cpu/rows_kernels.h",
      "return x / (vf_set(1.0F) + vf_exp(-x));", "return x / (vf_set(1.0F) + vf_exp(x));",
      "cpu.test_kernels", "SiLU")
_rule("quant.no-number", "engine/cpu/vec.h",
      "strange += v * vf_set(0);", "",
      "cpu.test_kernels", "what is no number shows behind a quantised matrix, and in attention over int8, too")
_rule("attend.value-scales", "engine/cpu/attend_kernels.h",
      "(vf)((vi)(e * vf_from_bf16(scale + i)) & (vi)(e != vf_set(0)))", "e",
      "cpu.test_kernels", "values in 8 bits are multiplied by their scales")
_rule("attend.unseen-scales", "engine/cpu/attend_kernels.h",
      "(vf)((vi)(e * vf_from_bf16(scale + i)) & (vi)(e != vf_set(0)))", "e * vf_from_bf16(scale + i)",
      "cpu.test_kernels", "what a recycled page holds behind a row's positions does not reach it")
_rule("attend.int8-quads", "engine/cpu/attend.h",
      "row % 2 * 2 + row / 2 % 2", "row % 4",
      "cpu.test_kernels", "int8 rows stand in a word in the order that products read")
_rule("attend.cap", "engine/cpu/attend_kernels.h",
      "if (p->cap > 0) cap_scores(s, p->cap);", "",
      "cpu.test_kernels", "scores are capped where the family caps them")
_rule("attend.pairs", "engine/cpu/attend_kernels.h",
      "turn(x, cos, sin, half, 2, 1);", "turn(x, cos, sin, half, 1, half);",
      "cpu.test_kernels", "neighbours turn together where the table says so")
_rule("attend.layer-window", "engine/backend.h",
      "return s->layer_window ? s->layer_window[layer] : s->window;", "return s->window;",
      "cpu.test_kernels adapters.test_golden", "each layer has its own window")
_rule("rows.gelu", "engine/cpu/rows_kernels.h",
      "vf_set(0.044715F) * x * x * x", "vf_set(0.044715F) * x * x",
      "cpu.test_kernels", "GELU by tanh")
_rule("rows.layer-norm-mean", "engine/cpu/rows_kernels.h",
      "float mean = vf_sum(acc) / (float)dim", "float mean = 0 * vf_sum(acc)",
      "cpu.test_kernels", "a layer norm takes the mean away")
_rule("family.one-plus", "engine/model/model_weights.c",
      "!model_files_stacks(l->files) ? 1.0F : 0.0F;", "!model_files_stacks(l->files) ? 0.0F : 0.0F;",
      "adapters.test_golden", "Gemma's norms are kept less 1")
_rule("family.fused-rows", "engine/model/model_weights.c",
      "at->first = p == PROJ_GATE ? 0 : d_out;", "at->first = p == PROJ_GATE ? d_out : 0;",
      "adapters.test_golden", "the gate's rows come first in gate_up_proj")
_rule("family.by-group", "engine/model/model_weights.c",
      "if (groups > 1) at->apart = at->whole / groups;", "if (groups > 9) at->apart = at->whole / groups;",
      "adapters.test_golden", "queries, keys and values of each group are found in their module")
_rule("adapter.by-group", "adapters/format/layout.c",
      ".skip = (rows - d_out) / groups * cols}", ".skip = (rows - d_out) / groups}",
      "adapters.test_golden", "B of a module with groups is cut as the base's rows are")
_rule("streams.correct", "engine/cpu/streams.c",
      "by = coefs[i] + 1;", "by = coefs[i];",
      "adapters.test_golden", "all streams learn from what a layer did to the first")
_rule("family.residual", "engine/model/model.c",
      "be_add(m->be, m->scratch.x, m->scratch.h, by * c->residual_scale,", "be_add(m->be, m->scratch.x, m->scratch.h, 1,",
      "adapters.test_golden", "what a block adds is multiplied")
_rule("family.parallel", "engine/model/model.c",
      "if (!c->parallel && c->mixer[i] != MIXER_NONE)", "if (c->parallel || in)",
      "adapters.test_golden", "a parallel MLP reads what attention read")
_rule("scan.channels-fresh", "engine/cpu/mixers/channels.c",
      "if (q->pos0 == 0)", "if (q->pos0 < 0)",
      "cpu.test_mixers", "a sequence begins with a state of zeros in a scan of channels, too")
_rule("scan.fresh", "engine/cpu/mixers/scan.c",
      "if (q->pos0 == 0) memset(part.state, 0, rows * cols * sizeof(float));", "",
      "cpu.test_mixers", "a sequence begins with a state of zeros, whatever its slot holds")
_rule("scan.bounds", "engine/cpu/mixers/scan.c",
      "return dt < r->dt_most ? dt : r->dt_most;", "return dt;",
      "cpu.test_mixers", "steps of a scan are kept within time_step_limit")
_rule("scan.groups", "engine/cpu/mixers/scan.c",
      "size_t group = head / ((size_t)sh->heads / (size_t)sh->groups);", "size_t group = 0;",
      "cpu.test_mixers", "heads of a group share its B and C")
_rule("scan.gate", "engine/cpu/scan_kernels.h",
      "if (!p->norm_first || !p->gain)", "if (!p->gain)",
      "cpu.test_mixers", "the gate multiplies before the norm or behind it")
_rule("family.no-rope", "engine/model/model.c",
      "if (kind & LAYER_NO_ROPE) t.rope_dim = 0;", "",
      "adapters.test_golden", "layers without positions")
_rule("family.norm-last", "engine/cpu/attend.c",
      "bool last = j->rope->norm_last && norm;", "bool last = false;",
      "adapters.test_golden", "Hunyuan's queries and keys are normed after they are turned")
_rule("family.temper-from", "engine/model/model.c",
      "t.q_from = m->cfg.q_scale_all ? 0 : 1;", "t.q_from = 1;",
      "adapters.test_golden", "Ministral 3 counts positions from 0, Llama 4 from 1")
_rule("family.local-rope", "engine/model/model.c",
      "if (kind & LAYER_WINDOW && m->local_rope.cos) t = m->local_rope.table;", "",
      "adapters.test_golden", "layers with a window turn by their own table")
_rule("family.logit-cap", "engine/model/model.c",
      "if (c->logit_scale != 1 || c->logit_cap > 0)", "if (c->logit_scale != 1)",
      "adapters.test_golden", "logits are capped")
_rule("family.whole-norm", "engine/model/model.c",
      "q_norm = k_norm = NULL;", "",
      "adapters.test_golden", "queries that were normed as one row are not normed by head")
_rule("family.unread-field", "engine/model/model_config.c",
      "!(reads & fields[i].reads))", "!fields[i].reads)",
      "engine.test_model_config", "a field that another family reads is refused")
_rule("family.wrapped-cap", "engine/model/model_config.c",
      'if (c->wrapped && !capped && config_is_set(j, "final_logit_softcapping"))',
      "if (false)",
      "engine.test_model_config", "a cap that transformers leaves out in a wrapper is refused")
_rule("family.shared-keys", "engine/model/model.c",
      "m->place[i].page = m->place[of].page;", "m->place[i].page = 0;",
      "adapters.test_golden", "Gemma 4's last layers read the keys of the last layer of their kind")
_rule("family.norm-bias", "engine/model/model.c",
      "m->scratch.x, norm, bias, c->norm_eps,", "m->scratch.x, norm, bias ? NULL : bias, c->norm_eps,",
      "adapters.test_golden", "StarCoder 2's norms have biases")
_rule("experts.first-of-equals", "engine/cpu/experts.c",
      "p[e] > p[best]))", "p[e] >= p[best]))",
      "cpu.test_experts", "of equal scores the expert with the lower number comes first")
_rule("experts.normed", "engine/cpu/experts.c",
      "(r->normed ? chosen[i] / sum : chosen[i]) *", "chosen[i] *",
      "cpu.test_experts adapters.test_golden", "the chosen experts' weights sum to one where the family says so")
_rule("experts.segments", "engine/cpu/experts.c",
      "if (n == 0 || out[n - 1].lora != from->lora)", "if (n == 0)",
      "cpu.test_experts adapters.test_golden", "each row of an expert meets its own adapter")
_rule("experts.whose-lora", "engine/cpu/linear.c",
      "return lora_expert(sg->lora, job->layer, job->expert,", "return lora_expert(sg->lora, job->layer, 0 * job->expert,",
      "cpu.test_experts adapters.test_golden", "each expert has LoRA of its own")
_rule("experts.reserved", "engine/cpu/experts.c",
      "wide.rows = (int)(slots + 15 * used);", "wide.rows = (int)slots;",
      "cpu.test_experts", "steps with experts stay within what was reserved")
_rule("experts.shared-part", "engine/cpu/experts.c",
      "1 / (1 + expf(-j->shared[i]))", "1",
      "cpu.test_experts adapters.test_golden", "the shared expert is multiplied by its gate")
_rule("experts.softmax-last", "engine/cpu/experts.c",
      "if (r->softmax_last) to_weights(r, chosen, k);", "",
      "adapters.test_golden", "Granite's weights are a softmax over the chosen scores")
_rule("experts.slice", "engine/model/model_files.c",
      "(size_t)at->slice * each + (size_t)at->row0 * row)", "(size_t)at->slice * each)",
      "adapters.test_golden", "ups stand behind gates in a tensor of all experts")
_rule("experts.sigmoid-groups", "engine/cpu/experts.c",
      "if (r->n_group > 0) close_groups(r, key);", "",
      "cpu.test_experts adapters.test_golden", "DeepSeek's rows choose from the highest groups alone")
_rule("experts.choice-bias", "engine/cpu/experts.c",
      "chosen[i] = p[out[i].expert];", "chosen[i] = key[out[i].expert];",
      "cpu.test_experts adapters.test_golden", "what is added for the choice is no part of the weights")
_rule("experts.scale-in", "engine/cpu/experts.c",
      "j->kern->bend(j->rows + i * dim, one->weight, 0, dim);", "",
      "cpu.test_experts adapters.test_golden", "Llama 4's weights multiply what an expert reads")
_rule("experts.alternate", "engine/model/model_weights.c",
      ".step = both && x->alternate ? 2 : 1,", ".step = 1,",
      "adapters.test_golden", "GPT-OSS' gates and ups take turns")
_rule("experts.mxfp4", "engine/model/stored_folder.c",
      "to->codes[2 * i + 1] = (int8_t)(q[i] >> 4);", "to->codes[2 * i + 1] = (int8_t)(q[i] & 15);",
      "adapters.test_golden", "of two columns in MXFP4 the second is the upper half")
_rule("experts.turned", "adapters/format/layout.c",
      "s.turned = own == other && !square;", "s.turned = false;",
      "adapters.test_golden", "A and B of a parameter may be the other way round")
_rule("family.sinks", "engine/cpu/attend_kernels.h",
      " + expf(rows[r].sink - part->max[r]));", ");",
      "adapters.test_golden", "a head's sink takes its share of the softmax")
_rule("split.behind", "engine/text/split_search.c",
      "found = found && k > s->begin && in_set(s, op, --k);", "found = found && k > 0 && in_set(s, op, --k);",
      "engine.test_split", "a look-behind sees nothing before the piece")
_rule("stream.near", "engine/backend.h",
      "return s->kept > 0 && pos > most ? most : pos;", "(void)most; return pos;",
      "engine.test_streams", "what is kept stands next to the window")
_rule("stream.parent", "engine/memory/kv.c",
      "int end = first / page < n_tokens / page - 1 ? first / page : n_tokens / page - 1;", "int end = first / page + 1;",
      "engine.test_kv engine.test_streams", "a page that is seen, or the next one's parent, is not given back")
_rule("family.chunks", "engine/backend.h",
      "return s->chunked ? pos - pos % window : pos - window + 1;", "return pos - window + 1;",
      "adapters.test_golden", "a row sees its own chunk alone")
_rule("family.temper", "engine/cpu/attend.c",
      "if (j->rope->q_scale > 0) {", "if (false) {",
      "adapters.test_golden", "queries without positions grow with them")
_rule("family.latent-scale", "engine/model/model_config.c",
      "if (c->latent.rank) c->score_scale *= c->rope.mscale_all * c->rope.mscale_all;", "",
      "engine.test_model_config adapters.test_golden", "yarn's mscale_all_dim scales DeepSeek's scores")
_rule("family.latent-turn", "engine/model/model.c",
      "if (m->cfg.latent.rank) t.first = m->cfg.absorbs ? m->cfg.latent.rank : m->cfg.latent.nope;", "",
      "adapters.test_golden", "the last values of DeepSeek's heads turn")
_rule("latent.gain-of-keys", "engine/cpu/latent.c",
      "for (size_t k = 0; gain && k < nope; k++) x[k] *= gain[k];", "",
      "cpu.test_latent", "DoRA's gain of a latent's keys multiplies the query")
_rule("latent.later-columns", "engine/cpu/latent.c",
      "memcpy(of_panel + from - p * PANEL, x + from - col,", "memcpy(of_panel + from - p * PANEL, x,",
      "cpu.test_latent", "LoRA on a latent's keys takes each head's own columns, in all panels")
_rule("latent.two-scales", "engine/cpu/attend.c",
      "store_codes((int8_t *)to + v, scales + 1, x + v, d - v);", "store_codes((int8_t *)to + v, scales, x + v, d - v);",
      "cpu.test_latent", "in int8 a latent and the key behind it have a scale each")
_rule("experts.dense-layers", "engine/model/model_config.c",
      "if ((i + 1) % every != 0) c->layer[i] &= (uint8_t)~LAYER_EXPERTS;", "",
      "engine.test_model_config adapters.test_golden", "layers between those with experts have one MLP")
_rule("experts.number", "adapters/format/layout.c",
      "(tn->expert >= base->experts.route.n ||", "(tn->expert > base->experts.route.n ||",
      "adapters.test_experts", "an adapter for more experts than there are is refused")
_rule("experts.parameters-apart", "adapters/format/layout.c",
      "from + adapter_tensor_place(t, i) * size, size);", "from + i * size, size);",
      "adapters.test_golden", "an expert's B stands among those of the others")
_rule("experts.parameters-scanned", "adapters/format/validate.c",
      "if (t->n_col > 0) end = adapter_tensor_span(t);", "",
      "adapters.test_experts", "every value of a parameter's B is looked at")
_rule("experts.inner-parameter", "adapters/format/layout.c",
      "tn->module == MODULE_STACK && down ? PROJ_DOWN", "tn->module != MODULE_STACK && down ? PROJ_DOWN",
      "adapters.test_golden adapters.test_experts", "the inner of two parameters is gate_up_proj")
_rule("experts.gguf-slice", "engine/model/model_files.c",
      "first = bytes * (uint64_t)slice;", "first = 0 * (uint64_t)slice;",
      "adapters.test_golden", "each expert is its own slice of a GGUF's tensor")
_rule("experts.gguf-norm", "engine/files/gguf_config.c",
      '"norm_topk_prob", m->of->normed)', '"norm_topk_prob", false)',
      "adapters.test_golden", "a Qwen3-MoE's GGUF norms the chosen weights")
_rule("experts.cost", "engine/sched/cost.c",
      "c->spared = n > 0 ? 1 - (double)top_k / n : 1;", "c->spared = n > 0 ? 1 + 0 * top_k : 1;",
      "engine.test_cost", "a step costs the experts that its rows take together")
_rule("cuda.nothing-of-a-split", "engine/cuda/attend.cu",
      "if (m[i] != -INFINITY) /* else nobody wrote sums */", "if (true)",
      "emu.test_attend", "sums of a split that no row sees are not read")
_rule("cuda.merge-again", "engine/cuda/attend.cu",
      "sums + (size_t)(s0 + s) * apart, apart,", "sums + (size_t)s * apart, apart,",
      "emu.test_attend", "of more than eight splits each is merged")
_rule("cuda.ticket-again", "engine/cuda/attend.cu",
      "if (last) *ticket = 0; /* for the next layer */", "",
      "emu.test_attend", "a merge leaves its ticket at zero for the next layer")
_rule("cuda.turned-on-the-way", "engine/cuda/attend.cu",
      "t->q_norm, t->cos + at, t->sin + at,", "NULL, t->cos + at, t->sin + at,",
      "emu.test_attend", "attention turns a row as the launch for it does")
_rule("cuda.kv-codes-scale", "engine/cuda/attend.cu",
      "if (CODES) tile_scale<true>(s, scales);", "",
      "emu.test_attend", "weights are multiplied by the scales of the values that are codes")
_rule("cuda.kv-codes-unseen", "engine/cuda/attend.cu",
      "src0 : src1) + i % PAGE * 4, live);", "src0 : src1) + i % PAGE * 4, true);",
      "emu.test_attend", "scales of positions that a recycled page had are not read")
_rule("cuda.room-too-early", "engine/cuda/attend.cu",
      "cu_syncwarp(); /* all have left the room of the step before */", "",
      "emu.test_attend", "a page comes to a room that all lanes have left")
_rule("cuda.page-twice", "engine/cuda/attend.cu",
      "(size_t)id[nth % PAGES] * kv->stride", "(size_t)id[0] * kv->stride",
      "emu.test_attend", "both pages of a tile are multiplied")
_rule("cuda.kv-codes-plain", "engine/cuda/attend.cu",
      "    p = cu_mul(p, cu_bf16_hi(scales));\n", "",
      "emu.test_attend emu.test_quantised", "codes of heads without tensor cores have their scales")
_rule("cuda.kv-codes-rule", "engine/cuda/rows/turn.h",
      "if (cu_mul(cu_f32_of_bf16(h), (float)CODE_MAX) < most) h++;", "",
      "emu.test_rows", "a device's keys and values have the CPU's codes and scales")
_rule("cuda.split-turns", "engine/cuda/products/gemm_inside.h",
      "if (c > 0) __syncthreads();", "",
      "emu.test_gemm", "sums of chunks stay until all have added them")
_rule("cuda.shrink-joined", "engine/cuda/linear.c",
      "    if (shrunk && !CU(be, cudaStreamWaitEvent(cu->stream, cu->joined, 0))) return;\n", "",
      "emu.test_graphs", "expand waits for the shrink beside the product")
_rule("cuda.gate-of-a-column", "engine/cuda/products/gemm_inside.h",
      "put_gated(a, row, col, sum[nt][i], sum[nt][2 + i]);", "put_gated(a, row, col, sum[nt][2 + i], sum[nt][i]);",
      "emu.test_gemm", "a product that gates gives what the product and the gate give")
_rule("cuda.wide-sixteen", "engine/cuda/products/gemm_wide.cu",
      "int at = (i & 8) | (i & 1) << 2 | (i >> 1 & 3);", "int at = i;",
      "emu.test_gemm", "wgmma adds the same sixteen products together as mma.sync does")
_rule("cuda.wide-fence", "engine/cuda/products/gemm_wide.cu",
      "                cu_fence_async();\n", "",
      "emu.test_gemm", "wgmma sees what was copied only behind a fence of its way to memory")
_rule("cuda.wide-read", "engine/cuda/products/gemm_wide.cu",
      "CU_WGMMA_WAIT(1); /* the stage", "CU_WGMMA_WAIT(3); /* the stage",
      "emu.test_gemm", "a stage is not written while wgmma may read it")
_rule("cuda.wide-sums", "engine/cuda/products/gemm_wide.cu",
      "            CU_WGMMA_WAIT(0);\n", "            CU_WGMMA_WAIT(1);\n",
      "emu.test_gemm", "sums are not added before wgmma has made them")
_rule("cuda.wide-chunks", "engine/cuda/products/gemm_wide.cu",
      "s > first || i > 0", "s > 0 || i > 0",
      "emu.test_gemm", "wgmma begins a chunk at 0")
_rule("cuda.slices-columns", "engine/cuda/products/gemm_codes.cu",
      "        if (!a->gated) part.y += at;\n", "",
      "emu.test_codes", "a slice's columns go to their places")
_rule("cuda.slices-up", "engine/cuda/products/gemm_codes.cu",
      "if (i_panel >= s.each) panel += s.up - s.each;", "if (i_panel >= s.each) panel += s.up;",
      "emu.test_codes", "behind a slice's gate comes its up")
_rule("cuda.slices-runs", "engine/cuda/products/gemm_codes.cu",
      "int at = a.codes.shift < 7 ? i : 0;", "int at = 0;",
      "emu.test_codes", "values that become plain have the scale of their run")
_rule("cuda.wide-law", "engine/cuda/products/blas.c",
      "if (c->bits[bucket] != bits) continue;", "if (!c->bits[bucket]) continue;",
      "emu.test_wide", "wgmma is taken only where it has the bits of few rows")
_rule("cuda.slices-early", "engine/cuda/products/blas.c",
      "rows < by->slice_rows;", "rows < 0;",
      "emu.test_wide", "codes become plain slices from as many rows on as choices.h says")
_rule("cuda.wide-device", "engine/cuda/cuda.c",
      "p->major != 9 || p->minor != 0", "p->major < 9 || p->minor != 0",
      "emu.test_wide", "kernels for sm_90 are launched on sm_90 alone")
_rule("cuda.in-place", "engine/cuda/rows.c",
      "half && out != x && cu->experts.n == 0;", "half && cu->experts.n == 0;",
      "emu.test_golden", "a norm in place leaves f32 for the stream")
_rule("cuda.routers-read-f32", "engine/cuda/rows.c",
      "half && out != x && cu->experts.n == 0;", "half && out != x;",
      "emu.test_golden", "a norm before a router leaves f32 for it")
_rule("cuda.devices-meet", "engine/cuda/tensor_parallel.c",
      "if (j != i) wait_for(tp, i, j);", "if (j > i) wait_for(tp, i, j);",
      "emu.test_tensor_parallel", "no device reads columns before all others have written them")
_rule("cuda.devices-columns", "engine/cuda/tensor_parallel.c",
      "a.to[a.n_to++] = floats_here(be, j, y) + i * each;", "a.to[a.n_to++] = floats_here(be, j, y) + j * each;",
      "emu.test_tensor_parallel", "a device's columns go to their own place in the others' rows")
_rule("cuda.devices-expand", "engine/cuda/tensor_parallel.c",
      "        m->b = (const char *)m->b + (size_t)col0 * each;\n", "",
      "emu.test_tensor_parallel", "a device expands its own columns of an adapter")
_rule("cuda.devices-pieces", "engine/cuda/tensor_parallel.c",
      "    m->b_more += piece + 1;\n", "    m->b_more += piece;\n",
      "emu.test_tensor_parallel", "a device's columns of an adapter go on in the pieces behind their first")
_rule("cuda.devices-law", "engine/cuda/tensor_parallel.c",
      "cu->blas.ours = true;", "cu->blas.ours = false;",
      "emu.test_tensor_parallel", "products of several devices have the law that hangs on K alone")
_rule("cuda.devices-logits", "engine/cuda/tensor_parallel.c",
      "    for (int j = 1; j < tp->n; j++) wait_for(tp, 0, j);\n    return", "    return",
      "emu.test_tensor_parallel", "logits are read when all devices' columns are there")
_rule("cuda.devices-pages", "engine/cuda/tensor_parallel.c",
      "*at = host + (size_t)i * part;", "*at = host + (size_t)(tp->n - 1 - i) * part;",
      "emu.test_tensor_parallel", "a saved page is as one device would have it")
_rule("cuda.experts-place", "engine/cuda/experts.cu",
      "for (int j = 0; j < warp * k; j++) before += chosen[j] == at[i];", "",
      "emu.test_experts", "no two rows of an expert have one place")
_rule("cuda.experts-nobody", "engine/cuda/experts.cu",
      "bool live = row < x.n_rows && x.live[row] >= 0;", "bool live = row < x.n_rows;",
      "emu.test_experts", "a row that pads the step goes to no expert")
_rule("cuda.experts-law", "engine/cuda/products/grouped.cu",
      "if ((k0 + AT_ONCE * STEP) % GEMM_CHUNK == 0) add_chunk<NT>(total, acc);", "",
      "emu.test_experts", "few rows are summed by the chunks of many")
_rule("cuda.experts-chunks", "engine/cuda/experts.cu",
      "mats_of(&x, s - 1) == m)", "true)",
      "emu.test_experts", "each adapter of an expert has its own chunks")
_rule("cuda.experts-layer", "engine/cuda/experts.c",
      "    c.layer = layer;", "    c.layer = 0 * layer;",
      "emu.test_golden", "adapters on experts are those of the layer")
_rule("cuda.experts-pieces", "engine/cuda/experts.c",
      "        c.x = x + before;", "        c.x = x;",
      "emu.test_batch_invariance", "rows that go through experts later are their own")
_rule("cuda.mlp-of-a-layer", "engine/cuda/adapter.c",
      "[PROJ_UP] = cu->mlp.cols[l],", "[PROJ_UP] = cu->mlp.cols[l] / 2,",
      "emu.test_golden", "LoRA has as many columns as its layer's MLP is wide")
_rule("cuda.sinks", "engine/cuda/attend.cu",
      "if (a->sinks)", "if (a->sinks && !a->sinks)",
      "emu.test_attend", "a sink takes its share of a head's weights")
_rule("cuda.chunked-windows", "engine/cuda/attend.cu",
      "return a->chunked ? pos - pos % a->window : pos - a->window + 1;",
      "return pos - a->window + 1;",
      "emu.test_attend", "a row sees its own run of positions, not the last ones")
_rule("cpu.adapter-rest-turned", "engine/cpu/pack.c",
      "for (int k = square ? whole : 0; k < rank; k++)", "for (int k = square ? rank : 0; k < rank; k++)",
      "cpu.test_kernels", "B's halves are packed to their last, whatever the rank is a multiple of")
_rule("pages.look-lands-nothing", "engine/sched/sched_pages.c",
      "if (!is_look(j)) sched_land(sc);", "sched_land(sc);",
      "engine.test_pages", "who only looks for pages waits for no step in flight")
_rule("http.ahead-of-this-body", "gateway/http/exchange.c",
      "if (x->body.ahead && left < WIDE_BYTES + CONNECTION_AHEAD) {", "if (x->body.ahead && left < 1) {",
      "e2e.test_push", "what TLS reads ahead is of the body, never of the request behind it")
_rule("http.pieces-one-behind-the-other", "gateway/http/connection.c",
      "visitor_read(my.v, to + n, cap - n, &p.events)", "visitor_read(my.v, to, cap - n, &p.events)",
      "e2e.test_push", "a long body's records lie one behind the other")
_rule("pace.turns-saved-up", "adapters/residency/pace.c",
      "fmin(p->spare + 1.0 / PACE_SPARE_STEPS, PACE_SPARE_MAX)", "p->spare",
      "adapters.test_pace", "a push that comes now and then does not wait for steps")
_rule("pace.few-turns-saved-up", "adapters/residency/pace.c",
      "p->spare -= 1;", "p->spare -= 0.5;",
      "adapters.test_pace", "no more turns are taken than were saved up")
_rule("pace.turn-of-this-step", "adapters/residency/pace.c",
      "double had = t->step == p->n_steps ? (double)(busy_us - t->busy_us) : 0;", "double had = (double)(busy_us - t->busy_us);",
      "adapters.test_pace", "a thread that goes before the steps has its part of each anew")
_rule("cuda.part-norms", "engine/cuda/rows.c",
      "    if (at.at != x) { /* a part", "    if (at.at == NULL) { /* a part",
      "emu.test_golden", "norms of all heads find their part of a fused product")
_rule("hurry.rest", "engine/program/hurry.c",
      "now_us < atomic_load(&rest_us) || ", "",
      "base.test_hurry", "nobody hurries for a while after one who did")
_rule("hurry.place", "engine/program/hurry.c",
      "(void)atomic_compare_exchange_strong(&holder_us, &mine, 0);", "atomic_store(&holder_us, 0);",
      "base.test_hurry", "who was taken over does not give the other's place away")
_rule("cuda.values-of-a-size", "engine/cuda/rows/turn.h",
      "d = which ? v_dim : kv->head_dim;", "d = kv->head_dim;",
      "emu.test_golden", "values of another size than keys have rows of their own in a page")
_rule("cuda.turned-behind", "engine/cuda/rows/turn.h",
      "int at = a->first + (a", "int at = (a",
      "emu.test_golden", "only the shared part of a latent's key is turned")
_rule("cuda.closed-groups", "engine/cuda/experts.cu",
      "if (!open[e / each]) none |= 1U << i;", "",
      "emu.test_golden", "nobody chooses an expert outside of the highest groups")
_rule("cuda.group-heights", "engine/cuda/experts.cu",
      "bool left = key < last || (key == last && e > at);", "bool left = true;",
      "emu.test_experts", "a group is as high as its highest experts, each taken once")
_rule("cuda.odd-widths", "engine/cuda/weights.c",
      "memcpy(padded + (size_t)i * wide,", "memcpy(padded + (size_t)i * row,",
      "emu.test_golden", "rows of matrices of an odd width stand on 16 bytes")
_rule("cuda.own-rows", "engine/cuda/rows/rows.cu",
      "        if (own >= 0) {", "        if (own > 0) {",
      "emu.test_rows", "a token's row of the adapter goes over the table's on a device")
_rule("cuda.codes-low", "engine/cuda/products/gemm_codes.cu",
      "s.low = low | low >> 16;", "s.low = low & 1;",
      "emu.test_codes", "an F16 scale is not cut to a BF16")
_rule("cuda.codes-zero", "engine/cuda/products/gemm_codes.cu",
      "record >> 16 & 0x1FU", "record >> 16 & 0xFU",
      "emu.test_codes", "zero points go up to 16")
_rule("cuda.codes-of-doubles", "engine/cuda/products/codes.c",
      "if (!bf16) c->form = (gemm_form)(c->form + 1);", "",
      "emu.test_codes", "scales that BF16 has not are kept as they are")
_rule("cuda.codes-halves", "engine/cuda/products/gemm_codes.cu",
      "-half * 60, a->gated", "0, a->gated",
      "emu.test_codes", "gate and up by codes have the scales of their own rows")
_rule("cuda.codes-fused", "engine/cuda/linear.c",
      "if (fused && !planned && !cuda_by_codes(w[0])) fused = 0;", "if (fused && !planned) fused = 0;",
      "emu.test_quantised", "q, k and v by codes are one product, gate and up another that gates")
_rule("cuda.early-wait", "engine/cuda/products/gemm.cu",
      "    cu_grid_wait();\n", "",
      "emu.test_gemm", "a product that begins early waits for what made x")
_rule("cuda.early-lists-only", "engine/cuda/sgmv.cu",
      "    cu_grid_wait(); /* for v, and what is added to */\n", "",
      "emu.test_sgmv", "an expand that begins early waits for v")
_rule("cuda.early-nothing-to-do", "engine/cuda/sgmv.cu",
      "n_lora) * n_group);\n    if (mine.first >= mine.end) return cu_grid_wait();",
      "n_lora) * n_group);\n    if (mine.first >= mine.end) return;",
      "emu.test_graphs_early", "a block without work stands for the launches before it as well")
_rule("cuda.stream-stage-early", "engine/cuda/products/stream.h",
      "CU_CP_ASYNC_WAIT(STAGES_ - 2);", "CU_CP_ASYNC_WAIT(STAGES_ - 1);",
      "emu.test_gemm", "a stage of a stream is multiplied when it has come")
_rule("cuda.inside-unfenced", "engine/cuda/gemm_lora_inside.h",
      "            cu_threadfence();\n            (void)cu_atomic_add_u32(done, 1);", "            (void)cu_atomic_add_u32(done, 1);",
      "emu.test_gemm_lora", "a piece of the shrink is there before it is counted")
_rule("cuda.inside-counts-on", "engine/cuda/gemm_lora_inside.h",
      "drawn[0] = drawn[ENDED] = drawn[DONE] = 0;", "drawn[0] = drawn[ENDED] = 0;",
      "emu.test_gemm_lora", "the next launch makes its shrink, too")
_rule("cuda.inside-x-early", "engine/cuda/gemm_lora_inside.h",
      "    cu_grid_wait(); /* for x, and for v that is read */\n", "",
      "emu.test_gemm_lora", "a shrink inside a product waits for what x is made by")
_rule("cuda.inside-b-early", "engine/cuda/gemm_lora_inside.h",
      "CU_CP_ASYNC_WAIT(STAGES_ - 2);", "CU_CP_ASYNC_WAIT(STAGES_ - 1);",
      "emu.test_gemm_lora", "a stage of B is multiplied when it has come")
_rule("cuda.inside-others-bias", "engine/cuda/gemm_lora_inside.h",
      "return own ? own : p->out[o].bias;", "return p->out[o].bias ? p->out[o].bias : own;",
      "emu.test_gemm_lora", "an adapter's bias takes the place of the base's")
_rule("cuda.inside-one-row", "engine/cuda/gemm_lora_inside.h",
      "if (row < 0 || row >= n_rows) continue;", "if (row < 0) continue;",
      "emu.test_gemm_lora", "an adapter's product is added to its own rows alone")
_rule("cuda.order-untold", "engine/cuda/products/blas.c",
      "p->order = own_order ? 0 : law;", "p->order = 0;",
      "emu.test_trial", "the fingerprint tells in which order a device sums")
_rule("cuda.inside-gate", "engine/cuda/linear.c",
      "cu->late_inside = true;", "cu->late_inside = false;",
      "emu.test_graphs_inside", "a gate behind LoRA inside a product has LoRA")
_rule("cuda.stream-narrow-gate", "engine/cuda/products/stream.h",
      "a->gated ? a->n / 2 : 0,", "a->gated && a->n > 16 ? a->n / 2 : 0,",
      "emu.test_gemm", "gate and up of eight columns each are told from no gate")
_rule("cuda.early-code", "engine/cuda/cuda.c",
      "p.major >= 9 && cu_code_waits();", "p.major >= 9;",
      "emu.test_wide", "launches begin early where the code that runs waits, whatever the device could")
_rule("cuda.tp-unpins", "engine/cuda/tensor_parallel.c",
      "    if (!atomic_load(&state_of(tp_of(be), 0)->wait->hung)) (void)cudaHostUnregister(p);", "    (void)be;\n    (void)p;",
      "emu.test_restart_tp", "memory that several devices copy from is unpinned before it is given back")
_rule("cuda.tp-spent", "engine/cuda/tensor_parallel.c",
      "        be->spent |= tp->dev[i].spent;\n", "",
      "emu.test_trial", "several devices that hung are not opened again in the same process")
_rule("cuda.trial-waits-on", "engine/cuda/products/wait.c",
      "            atomic_store(&w->hung, true);\n", "",
      "emu.test_trial", "of a device that hangs nothing is waited for or given back")
_rule("cuda.hang-awaited", "engine/cuda/cuda.c",
      "CU(be, wait_event(cu->wait, cu->mark[mark]))", "CU(be, cudaEventSynchronize(cu->mark[mark]))",
      "emu.test_restart", "a step of a device that hangs is not waited for without end")
_rule("cuda.hang-frees", "engine/cuda/products/wait.c",
      "if (p && !atomic_load(&w->hung))", "if (p)",
      "emu.test_restart", "pinned memory is not given back to a device that hangs")
_rule("cuda.hang-unpins", "engine/cuda/kv.c",
      "    if (!atomic_load(&cuda_of(be)->wait->hung)) (void)cudaHostUnregister(p);", "    (void)be;\n    (void)cudaHostUnregister(p);",
      "e2e.test_emulated", "the pool of swapped pages is not given back to a device that hangs")
_rule("sched.reopened-lost", "engine/sched/sched_restart.c",
      " || be_remedy_of(sc->be) == BE_HEALS_NEVER) return false;", ") return false;",
      "e2e.test_restart", "a device that came back, and is lost when its kernels are tried, is another process's")
_rule("gateway.replaced-suspect", "gateway/start/serve.c",
      "    (void)leave_out_suspect(&p->parts);\n", "",
      "e2e.test_restart", "the process that takes the place goes without the kernels that failed")
_rule("cuda.trial-unnamed", "engine/cuda/inside.c",
      "cu->blas.trying = KERNELS_INSIDE;", "cu->blas.trying = NULL;",
      "emu.test_trial", "a device that is lost at kernels which are tried names them")
_rule("cuda.trial-again", "engine/cuda/cuda.c",
      "return !be_has_kernel(cfg->without, kernels);", "return true;",
      "emu.test_trial", "kernels that the next process is to go without are not tried")
_rule("restart.sockets-forgotten", "gateway/net/kept.c",
      "    if (n_kept < 0) read_kept(); /* sockets", "    /* sockets",
      "e2e.test_restart", "a start that fails leaves the listening sockets to the next process")
_rule("cuda.expand-item-twice", "engine/cuda/sgmv.cu",
      "int each = (n + (int)gridDim.x - 1) / (int)gridDim.x,", "int each = n / (int)gridDim.x,",
      "emu.test_sgmv", "the blocks of expand share all items")
_rule("restart.keeps-cudas-socket", "gateway/net/kept.c",
      " && domain != AF_UNIX", "",
      "e2e.test_restart", "a process that replaces itself keeps the network's sockets alone")
_rule("cuda.early-constant", "engine/cuda/products/gemm.cu",
      "in ? cu_ld16(x[nt] + at +", "in ? cu_ldg16(x[nt] + at +",
      "emu.test_gemm", "what a launch before wrote is not read as if it were constant")
_rule("cuda.early-attention", "engine/cuda/attend.cu",
      "    cu_grid_wait(); /* for q, k and v */\n", "",
      "emu.test_attend", "attention that begins early waits for q, k and v")
_rule("cuda.added-tokens", "engine/cuda/products/gemm_inside.h",
      "return a->place && col < a->n ? a->place[col] : col;", "return col;",
      "emu.test_gemm emu.test_golden", "logits of added tokens go to their places")
_rule("cuda.mask-of-own-vocabulary", "engine/cuda/draw.c",
      "if (to && n_vocab % 32) *last", "if (!to && n_vocab % 32) *last",
      "emu.test_sampling", "a form allows nothing that the adapter's vocabulary does not have")
_rule("cuda.columns-of-the-matrix", "engine/cuda/sgmv_inside.h",
      "if (m->d_out > 0 && m->d_out < out->d_out) out->d_out = m->d_out;", "",
      "emu.test_sgmv", "LoRA on an output layer reads no more columns than it has")
_rule("cuda.pairs", "engine/cuda/rows/turn.h",
      "a->first + (a->pairs ? 2 * i : i)", "a->first + i",
      "emu.test_rows", "the device turns neighbours where the table says so")
_rule("rope.yarn-ramp", "engine/model/rope.c",
      "float keep = 1.0F - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);", "float keep = 1.0F;",
      "adapters.test_golden", "yarn stretches long waves")
_rule("rope.back", "engine/model/rope.c",
      "fn(t->back ? -angle : angle)", "fn(angle)",
      "adapters.test_golden", "nanochat's positions turn the other way")
_rule("family.sparse-mix", "engine/cpu/experts.c",
      "if (i != without && !far) sum +=", "if (i != without) sum +=",
      "adapters.test_golden", "Phi-MoE's experts share a row with near scores alone")
_rule("family.head-bias", "engine/model/model.c",
      "    if (m->head_bias)\n", "    if (false)\n",
      "adapters.test_golden", "Phi's output layer has a bias")
_rule("family.mlp-types", "engine/model/model_config.c",
      "if (!rc && fx->reads_types)", "if (!rc && !fx->reads_types)",
      "adapters.test_golden", "mlp_layer_types says which layers have experts")
_rule("rope.attention-factor", "engine/model/rope.c",
      "(float)fn(t->back ? -angle : angle) * t->factor", "(float)fn(t->back ? -angle : angle)",
      "adapters.test_golden", "yarn and longrope multiply cosines and sines")
_rule("rope.long", "engine/model/rope.c",
      "max_pos > r->original_pos ? r->long_factor : r->short_factor", "max_pos < 0 ? r->long_factor : r->short_factor",
      "adapters.test_golden", "longrope's long factors beyond the length of training")
_rule("rows.eps", "engine/cpu/rows_kernels.h",
      "vf_sum(acc) / (float)dim + eps", "vf_sum(acc) / (float)dim + 0 * eps",
      "cpu.test_kernels", "the norm's epsilon")
_rule("linear.lora-scale", "engine/cpu/linear_kernels.h",
      "o[j] += sums[j] * scale;", "o[j] += sums[j] * (scale > 0);",
      "cpu.test_kernels", "LoRA is scaled")
_rule("linear.shrink-tail", "engine/cpu/linear_kernels.h",
      "if (k < d) dot_rest(", "if (k < 0 * d) dot_rest(",
      "cpu.test_kernels", "the shrink reads all of a row")
_rule("linear.pieces-add-up", "engine/cpu/linear_kernels.h",
      ".more = k0 > 0};", ".more = k0 < 0};",
      "cpu.test_kernels", "the pieces of a product are added")
_rule("dora.cross-term", "engine/cpu/dora.c",
      "2 * s * cross[j] + s * s * own[j]", "s * cross[j] + s * s * own[j]",
      "adapters.test_golden", "DoRA's length of W + s B A")
_rule("embed.own-rows", "engine/cpu/rows.c",
      "if (own >= 0)", "if (own > 1 << 30)",
      "adapters.test_golden", "a token's row of the adapter goes over the base's")
_rule("sgmv.scale", "engine/cuda/sgmv_inside.h",
      "cu_fma(m->scale, sum, in)", "fmaf(1.0F, sum, in)",
      "emu.test_sgmv", "LoRA is scaled on a device")
_rule("sgmv.shrink-chains", "engine/cuda/sgmv.cu",
      "for (int w = 1; w < WARPS; w++) sum +=", "for (int w = 2; w < WARPS; w++) sum +=",
      "emu.test_sgmv", "the shrink adds all its chains")
_rule("sgmv.expand-low-halves", "engine/cuda/sgmv.cu",
      "mma16<BF16>(acc[nt][i], a, vl);", "",
      "emu.test_sgmv", "the expand keeps what v's halves round away")
_rule("sgmv.plan-rows", "engine/cuda/sgmv_plan.c",
      ".row0 = sg->row0 + done,", ".row0 = sg->row0 + 0 * done,",
      "emu.test_sgmv", "each chunk has rows of its own")

# ---- sampling -------------------------------------------------------------------------------------

_rule("sampler.top-p", "engine/sample/cut.c",
      "return need < 1 ? 1 : need < mass ? need : mass;", "return need < 1 ? 1 : mass;",
      "engine.test_cut engine.test_sampler", "top_p cuts")
_rule("sampler.top-k", "engine/sample/cut.c",
      "(uint64_t)top_k - 1, &mass", "(uint64_t)top_k, &mass",
      "engine.test_cut", "top_k keeps k")
_rule("sampler.min-p", "engine/sample/cut.c",
      "mass = likely < mass ? likely : mass;", "mass = likely > mass ? likely : mass;",
      "engine.test_cut", "min_p cuts")
_rule("sampler.ties", "engine/sample/logits.c",
      "if (any(in)) break;", "if (any(in)) return i;",
      "engine.test_sampler", "a greedy pick is the best itself, not its neighbour")
_rule("sampler.seed-and-number", "engine/sample/sampler.c",
      "double u = uniform(rules->seed, (uint64_t)n_output);", "double u = uniform(rules->seed, 0 * (uint64_t)n_output);",
      "engine.test_sampler", "each draw has a number of its own")
_rule("sampler.repetition", "engine/sample/sampler.c",
      ": logits[t] * r->repetition_penalty;", ": logits[t] / r->repetition_penalty;",
      "engine.test_sampler", "a repetition penalty lowers what is negative, too")
_rule("sampler.allowed", "engine/sample/sampler.c",
      "if (!(bits >> k & 1)) logits[base + k] = -INFINITY;", "if (!(bits >> k & 1) && k > 0) logits[base + k] = -INFINITY;",
      "engine.test_sampler", "only what the mask allows is drawn")
_rule("sampler.min-tokens", "engine/sample/sampler.c",
      "bool early = n_output < r->min_tokens &&", "bool early = n_output < 0 * r->min_tokens &&",
      "engine.test_sampler", "no stop before min_tokens")
_rule("sampler.not-a-number", "engine/sample/sampler.c",
      "if (!logits_finite(logits, n)) return;", "",
      "engine.test_sampler", "a row that is no number draws nothing")
_rule("bars.sequences", "engine/sample/bars.c",
      "if (is != s->id[i]) return false;", "if (is < 0) return false;",
      "engine.test_bars", "a word is barred behind its own beginning only")

# ---- what strangers upload ------------------------------------------------------------------------

_rule("tar.dot-dot", "adapters/format/tar.c",
      "bool dots = (n == 2 && p[0] == '.' && p[1] == '.');", "bool dots = (n == 2 && p[0] == '.' && p[1] == 1);",
      "adapters.test_upload", "no name of a tar leads out of its folder")
_rule("tar.links", "adapters/format/tar.c",
      "return refuse_type(type, name, e);", "return type == '9' ? refuse_type(type, name, e) : ERR_NONE;",
      "adapters.test_upload", "links and devices in a tar are refused")
_rule("tar.checksum", "adapters/format/tar.c",
      "if (!checksum_fits(b))", "if (!checksum_fits(b) && !b)",
      "adapters.test_upload", "a damaged header is refused")
_rule("tar.twice", "adapters/format/tar.c",
      "if (strcmp(t->seen[i], name) == 0)", "if (strcmp(t->seen[i], name) == 2)",
      "adapters.test_upload", "no file comes twice")
_rule("tar.bounded", "adapters/format/tar.c",
      "if (t->n_bytes > t->limits.max_bytes)", "if (t->n_bytes > 1000 * t->limits.max_bytes)",
      "adapters.test_upload", "an upload is no larger than it may be")
_rule("validate.finite", "adapters/format/validate.c",
      "? (v >> 23 & 0xff) >= 127 + 64", "? (v >> 23 & 0xff) >= 256",
      "adapters.test_upload adapters.test_hostile", "weights that are no numbers are refused")
_rule("validate.shapes", "adapters/format/layout.c",
      "(t->shape[0] != rows || t->shape[1] != cols)", "(t->shape[0] != rows && t->shape[1] != cols)",
      "adapters.test_upload adapters.test_hostile", "each tensor has the base's shape")
_rule("validate.missing", "adapters/format/layout.c",
      'if (!pair->b.present) return "lora_B.weight";', 'if (!pair->b.present) return NULL;',
      "adapters.test_upload adapters.test_hostile", "no tensor that is promised may be missing")
_rule("validate.rank", "adapters/format/peft.c",
      "rank != floor(rank) || rank < 1 || rank > rank_limit", "rank != floor(rank) || rank < 1",
      "adapters.test_peft adapters.test_hostile", "ranks are bounded")
_rule("validate.rslora", "adapters/format/peft.c",
      "(alpha / (pc->rslora ? sqrt(rank) : rank))", "(alpha / (pc->rslora ? rank : rank))",
      "adapters.test_peft", "rsLoRA's scale")
_rule("validate.router", "engine/model/layers.c",
      "p >= PROJ_ROUTER ? DT_F32", "p >= PROJ_COUNT ? DT_F32",
      "adapters.test_golden", "adapters of routers are packed as routers are, in F32")
_rule("mixers.delta-window", "engine/cpu/delta_kernels.h",
      "bool fresh = p->fresh && b->row0 == 0;", "bool fresh = p->fresh;",
      "cpu.test_mixers", "the delta rule's convolution reads the rows of the call before it, some rows at a time")
_rule("mixers.delta-each", "engine/cpu/delta_kernels.h",
      "const float *find = each ? b->finds[row] : k", "const float *find = each ? k : k",
      "cpu.test_mixers", "each row of a matrix has forgotten before a key finds what stands there (Kimi Linear)")
_rule("model.gated-answers", "engine/model/model.c",
      "if (c->q_gated) be_q_gate(", "if (c->q_gated && latent) be_q_gate(",
      "adapters.test_golden", "attention's answer is multiplied by the gates that q_proj makes (Qwen3.5)")
_rule("validate.excluded", "adapters/format/peft.c",
      "if (!pl->excluded) return false;", "if (!pl->excluded || name) return false;",
      "adapters.test_peft", "exclude_modules")
_rule("storeroom.quota", "adapters/store/storeroom.c",
      "published + coming + more <= (uint64_t)limit", "published + 0 * coming + more <= (uint64_t)limit",
      "adapters.test_storeroom", "uploads that are open count for the quota")
_rule("storeroom.floor", "adapters/store/storeroom.c",
      "uint64_t want = r->floor_bytes + bytes;", "uint64_t want = 0 * r->floor_bytes + bytes;",
      "adapters.test_storeroom", "a floor of the disk stays free")
_rule("staging.offsets", "adapters/store/staging.c",
      "} else if (offset >= 0 && (uint64_t)offset != s->file[part].offset) {",
      "} else if (offset >= 0 && (uint64_t)offset < s->file[part].offset) {",
      "adapters.test_staging", "a piece goes where the last one ended")
_rule("staging.checksums", "adapters/store/staging.c",
      "if (memcmp(got, s->file[p].sha, DIGEST_BYTES) == 0) {", "if (memcmp(got, s->file[p].sha, DIGEST_BYTES) != 300) {",
      "adapters.test_staging", "a file is what its manifest says")
_rule("staging.whole", "adapters/store/staging.c",
      "if (s->file[p].offset != s->file[p].bytes)", "if (s->file[p].offset > s->file[p].bytes)",
      "adapters.test_staging", "only whole uploads are committed")
_rule("staging.expiry", "adapters/store/staging.c",
      "if (session_busy(s) || now_us - s->last_us < sg->expiry_us) continue;",
      "if (now_us - s->last_us < sg->expiry_us) continue;",
      "adapters.test_staging", "an upload at work does not expire")
_rule("publish.rotten-files", "adapters/store/publish.c",
      "if (is_whole(to, sha)) return ERR_NONE;", "if (is_whole(to, sha) || reg) return ERR_NONE;",
      "adapters.test_upload", "a fresh upload mends files that rotted")
_rule("publish.forgets", "adapters/store/publish.c",
      "if (code != ERR_NONE) registry_files_forget(env->reg, whole);", "",
      "adapters.test_upload", "files of a refused upload go again")

# ---- texts ----------------------------------------------------------------------------------------

_rule("tokenizer.merge-ranks", "engine/text/tokenizer.c",
      "return x->rank < y->rank || (x->rank == y->rank && x->pos < y->pos);", "return x->pos < y->pos;",
      "engine.test_tokenizer", "merges go by their rank")
_rule("split.no-branch-twice", "engine/text/split_search.c",
      "if (*word & bit) return false;", ";",
      "engine.test_split", "cutting a text takes steps in proportion to its length, whatever it says")
_rule("split.forgets-at-a-border", "engine/text/split_search.c",
      "if (s->marking && n) memset(", "if (s->marking && !n) memset(",
      "engine.test_split", "what failed at the end of a piece may be found at the beginning of the next")
_rule("split.greedy-for-sure", "engine/text/split_compile.c",
      "n->mode == REPEAT_GREEDY && sure", "n->mode == REPEAT_GREEDY",
      "engine.test_split", "a repetition gives back what the rest of its pattern needs")
_rule("split.piece-is-a-text", "engine/text/tokenizer_split.c",
      "split_search_piece(s, from, to);", "split_search_piece(s, from, t->n);",
      "engine.test_split", "a step sees nothing beyond the piece that it cuts")
_rule("split.inverted", "engine/text/tokenizer_split.c",
      "found = found != p->step->invert;", ";",
      "engine.test_split", "an inverted Split takes what lies between")
_rule("split.nesting", "engine/text/split_parse.c",
      "if (++p->depth > SPLIT_NESTING_MAX)", "if (++p->depth > 9999)",
      "engine.test_split", "a pattern's groups nest no deeper than the limit")
_rule("tags.fail-links", "engine/grammar/grammar_tags.c",
      "t->node[to].fail = go(t, from->fail, byte);", "t->node[to].fail = 0;",
      "engine.test_grammar", "a trigger is found that begins inside of another's beginning")
_rule("tags.heads-at-the-start", "engine/grammar/grammar_tags.c",
      "gb_eps(t->b, from, t->node[heads ? t->first : 0].state);", "gb_eps(t->b, from, t->node[0].state);",
      "engine.test_grammar", "what counts only where the answer begins counts there")
_rule("tags.hidden", "engine/grammar/grammar_outside.c",
      "bool may = open && !shown[i];", "bool may = !shown[i];",
      "engine.test_grammar", "inside of a tag no special token comes")
_rule("tags.loose-thoughts", "engine/grammar/grammar_lead.c",
      "if (forced || l->once || (l->form && !l->loose)) push(l, &l->gap);", "if (forced || l->form) push(l, &l->gap);",
      "engine.test_grammar", "behind thoughts free text is free")
_rule("tools.reader-and-form-agree", "gateway/openai/tools/tool_object.c",
      "return memchr(r->raw.s + name, '\\\\', end - name) ? TOOL_NO_CALL : TOOL_CALL;", "return TOOL_CALL;",
      "gateway.test_tool_reader", "what the form does not see as a call is none")
_rule("tools.members-are-held", "engine/grammar/grammar_tags.c",
      "if (t->members && !put_members(t, s, inside, behind)) return false;", "if (t->members) gb_eps(t->b, inside, behind);",
      "e2e.test_guided_tools", "arguments written one by one keep their schema")
_rule("tools.apart-is-text", "gateway/openai/tools/tool_reader.c",
      "r->plain = begins == TOOL_NO_CALL;", "r->plain = false;",
      "gateway.test_tool_reader", "an answer of a format has no calls in it")
_rule("tools.cut-call-is-no-text", "gateway/openai/tools/tool_reader.c",
      "if (r->ways & TOOLS_FORCED) return true;", "",
      "gateway.test_tool_reader", "a forced call that is cut shows no mark")
_rule("tools.answer-or-tag", "engine/grammar/grammar_tags.c",
      "if (!can_begin(t->answer, t->trig[k].text, w)) continue;", "continue;",
      "engine.test_grammar", "a format that can begin as a call does is refused")
_rule("history.text-stays", "gateway/openai/openai_history.c",
      "if (s && !object) object = cJSON_CreateString(s);", "if (s && !object) object = cJSON_CreateObject();",
      "gateway.test_openai", "arguments that are no object reach the template as text")
_rule("fields.select-adapter", "gateway/openai/openai_fields.c",
      "        *model = name;\n", "",
      "gateway.test_openai", "a field that names an adapter selects it")
_rule("route.slashes", "gateway/route.c",
      "if (n > 1 && path[n - 1] == '/') n--;", "",
      "gateway.test_route", "a slash at the end of a path means nothing")
_rule("tools.python-words", "gateway/openai/tools/tool_named.c",
      '{"True", "true"}', '{"True", "True"}', "gateway.test_tool_reader", "Python's words become JSON's")
_rule("thinking.calls-of-channels", "engine/chat/thinking.c",
      "r->phase = call ? CALLING : thought ? INSIDE : TEXT;", "r->phase = thought ? INSIDE : TEXT;",
      "engine.test_thinking", "a message to a function goes to the reader of calls, its end included")
_rule("messages.no-billing-line", "gateway/doors/messages_input.c",
      'return strcmp(param, "system") == 0 && strncmp(text, line, sizeof(line) - 1) == 0;', "return !param || !text || !line[0];",
      "e2e.test_loops", "a line that changes with each request is no prompt")
_rule("tools.auto-keeps-schemas", "gateway/openai/openai_calls.c",
      "return guide(rq, style, ct, p);", "return openai_free_calls(rq, p);",
      "e2e.test_guided_tools", "calls in auto keep their functions' schemas")
_rule("unigram.unknown-costs", "engine/text/tokenizer_model.c",
      "t->piece.unk_score = least - PENALTY;", "t->piece.unk_score = least;",
      "engine.test_pieces", "an unknown character costs more than the worst piece")
_rule("unigram.unknown-is-one", "engine/text/tokenizer_pieces.c",
      "while (end < len && b[b[end].from].id == unk)", "while (end < len && unk < -1)",
      "engine.test_pieces", "unknown characters behind one another are one unknown token")
_rule("word-piece.whole-word", "engine/text/tokenizer_pieces.c",
      "en->n = begin; /* a word", "/* a word",
      "engine.test_pieces", "of a word that cannot be written nothing stays")
_rule("charsmap.grapheme", "engine/text/charsmap.h",
      "#define CHARSMAP_WHOLE(len) ((len) < 6)", "#define CHARSMAP_WHOLE(len) ((len) < 1)",
      "engine.test_pieces", "a short grapheme is looked up whole")
_rule("charsmap.bounds", "engine/text/charsmap.c",
      "return from < m->text_len ? m->text + from : \"\";", "return m->text + from;",
      "engine.test_pieces", "a map leads nowhere outside of itself")
_rule("normal.taint", "engine/text/normal.c",
      "if (w->tainted) memset(w->out.taint + w->out.len, foreign, n);",
      "if (w->tainted) memset(w->out.taint + w->out.len, 0, n);",
      "engine.test_pieces", "what is made of a stranger's character is the stranger's")
_rule("split.scripts", "engine/text/split_class.c",
      "if (((int)(run >> 24) == p->script) != p->not_script)", "if ((int)(run >> 24) == p->script)",
      "engine.test_split", "all but a script is not the script")
_rule("tokenizer.special-when-asked", "engine/text/tokenizer_cut.c",
      "if ((a->special && !en->special) || ", "if (",
      "engine.test_tokenizer", "special tokens are read only where they may be")
_rule("tokenizer.no-forgery", "engine/text/tokenizer_cut.c",
      "return memchr(p->taint + i, 1, a->len) == NULL;", "return memchr(p->taint + i, 2, a->len) == NULL;",
      "engine.test_tokenizer engine.test_chat", "a message's text becomes no special token")
_rule("chat.markers", "engine/chat/chat.c",
      "if (written) ct->barred[ct->n_barred++] = id;", "if (written && id < 0) ct->barred[ct->n_barred++] = id;",
      "engine.test_chat", "a message's text becomes none of the template's markers")
_rule("chat.ends", "engine/chat/chat.c",
      "add_stop(ct, tok, tokenizer_find(tok, ends[i]));", "(void)ends[i];",
      "engine.test_chat", "the token that ends a turn ends the answer")
_rule("jinja.who-wrote-it", "engine/chat/jinja_value.c",
      "| (foreign ? JCHAR_FOREIGN : 0);", "| (foreign ? 0 : 0);",
      "engine.test_jinja", "each character knows whether a stranger wrote it")
_rule("grammar.masks", "engine/grammar/automaton/grammar_mask.c",
      "if (good == len && unique_can_end(w, len)) allow(out, id);",
      "if (good + 1 >= len) allow(out, id);",
      "engine.test_grammar", "a mask allows a token whose bytes all fit")
_rule("grammar.loops", "engine/grammar/automaton/grammar_mask.c",
      "if (n->below & ~t->back) continue;", "if (!t->back) continue;",
      "engine.test_grammar", "a mask looks at tokens that lead out of a loop")
_rule("grammar.loops-have-room", "engine/grammar/automaton/grammar_mask.c",
      "max - f->c >= n->tall", "max - f->c >= 1",
      "engine.test_grammar", "a loop that ends within a token is not taken for endless")
_rule("grammar.loops-alone", "engine/grammar/automaton/grammar_mask.c",
      "other != f && (n->below", "other == f && 0 && (n->below",
      "engine.test_grammar", "a token that may leave a loop that counts depends on more than its bytes")
_rule("schema.if", "engine/grammar/schema/grammar_plain.c",
      "cJSON_AddItemToArray(any, all_of(cond, then));", "cJSON_AddItemToArray(any, then ? then : cond);",
      "engine.test_grammar", "where `then` is written, `if` holds")
_rule("schema.not-integer", "engine/grammar/schema/grammar_opposite.c",
      'strcmp(types[i], "number") == 0 ? number || integer', 'strcmp(types[i], "number") == 0 ? number',
      "engine.test_grammar", "what is no integer is not written as a number")
_rule("schema.opposites-evaluate-nothing", "engine/grammar/schema/grammar_unevaluated.c",
      "cJSON *rest = list_of_one(a_way(no));", "cJSON *rest = ways_of(c, no, asked, deep);",
      "engine.test_grammar", "an `if` that fails evaluates nothing")
_rule("schema.patterns", "engine/grammar/schema/grammar_schema.c",
      "if (found) own = own ? schema_both(c, own, v) : v;", "if (found) own = own ? own : v;",
      "engine.test_grammar", "a named member holds for the patterns that its name matches, too")
_rule("schema.steps-behind-the-point", "engine/grammar/schema/grammar_multiple.c",
      "d.m / common_divisor(d.m, power(behind - f))", "common_divisor(d.m, power(behind - f))",
      "engine.test_grammar", "a number with fewer digits behind the point is a multiple of the step, too")
_rule("schema.listed-values-hold", "engine/grammar/schema/grammar_values.c",
      "return a == HOLDS && b == HOLDS ? HOLDS : HOLDS_UNKNOWN;", "return a == HOLDS_UNKNOWN ? b : a;",
      "engine.test_grammar", "a listed value is written only where all else is known to hold")
_rule("unique.members-in-any-order", "engine/grammar/automaton/grammar_unique_hash.c",
      "h += mixed(name[i] + mixed(", "h = mixed(h + name[i] + mixed(",
      "engine.test_grammar", "objects with the same members in another order are the same item")
_rule("unique.names", "engine/grammar/schema/grammar_schema.c",
      "if (unlike) gb_new(b, ended, colon);", "if (unlike) gb_eps(b, ended, colon);",
      "engine.test_grammar", "a name that comes twice is one member of those that must be there")
_rule("unique.masks-hang-on-the-text", "engine/grammar/grammar.c",
      "if (hung || unique_hangs(r->text)) kind", "if (hung && !unique_hangs(r->text)) kind",
      "engine.test_grammar", "where items must differ, a mask is not that of the token before")
_rule("unique.no-corner", "engine/grammar/grammar.c",
      "if (!r->text || !unique_is_open(r->text)) return;", "if (!r->text || unique_is_open(r->text)) return;",
      "engine.test_grammar", "a token that only leads to repetitions is barred")
_rule("schema.lengths", "engine/grammar/regex/grammar_regex.c",
      "if (one.most > 0 && !open) max = least_of(max, hi / one.most);", "if (one.most < 0) max = 0;",
      "engine.test_grammar", "maxLength narrows a pattern")
_rule("schema.anchors", "engine/grammar/schema/grammar_refs.c",
      "if (own && !t->failed) enter(t, s, own, &at, p);", "",
      "engine.test_grammar", "a reference is read from the schema that it stands in")
_rule("grammar.bounds", "engine/grammar/automaton/grammar_walk.c",
      "if (max >= 0 && f.c >= max) continue;", "if (max >= 0 && f.c > max) continue;",
      "engine.test_grammar", "a repetition ends at its bound")
_rule("text.stop-strings", "gateway/openai/completion_text.c",
      "ct->released = ct->len - held_tail(ct);", "ct->released = ct->len - 0 * held_tail(ct);",
      "gateway.test_completion_text", "what may begin a stop string is held back")
_rule("completion.nothing-beyond-the-stop", "gateway/openai/completion_choice.c",
      "ch->n_beyond++;", "",
      "e2e.test_speculation", "nobody pays for tokens behind a stop string")
_rule("text.earliest-stop", "gateway/openai/completion_text.c",
      "if (at && (size_t)(at - ct->text) < best) {", "if (at) {",
      "gateway.test_completion_text", "the stop string that stands first ends the text")
_rule("json.duplicates", "engine/base/json.c",
      "if (strcmp(all[i - 1].v->string, all[i].v->string) != 0) continue;",
      "if (strcmp(all[i - 1].v->string, all[i].v->string) != 2) continue;",
      "base.test_json", "no name stands twice in an object")

# ---- HTTP and TLS ---------------------------------------------------------------------------------

_rule("guard.one-framing", "gateway/http/guard.c",
      'if (n_cl && n_te) return "Content-Length and Transfer-Encoding exclude each other";', "",
      "gateway.test_guard", "a body has one framing")
_rule("guard.one-length", "gateway/http/guard.c",
      "if (n_cl > 1 || n_te > 1)", "if (n_te > 1)",
      "gateway.test_guard", "a body has one length")
_rule("guard.digits", "gateway/http/guard.c",
      'return n >= 1 && n <= 15 && strspn(s, "0123456789") == n;', "return n >= 1 && n <= 15;",
      "gateway.test_guard", "a length is digits")
_rule("guard.one-host", "gateway/http/guard.c",
      'if (n > 1) return "two Host headers";', "",
      "gateway.test_guard", "a request is for one host")
_rule("chunks.sizes", "gateway/http/chunks.c",
      "if (++c->n_digits > CHUNKS_DIGITS_MAX) return BROKEN;", "++c->n_digits;",
      "gateway.test_chunks", "a chunk's size does not overflow")
_rule("chunks.ends", "gateway/http/chunks.c",
      "case DATA_CR: return b == '\\r' ? DATA_LF : BROKEN;",
      "case DATA_CR: return b == '\\r' ? DATA_LF : b == '\\n' ? AT_SIZE : BROKEN;",
      "gateway.test_chunks", "a chunk ends with CR LF")
_rule("chunks.trailers", "gateway/http/chunks.c",
      "if (++c->trailer_bytes > CHUNKS_TRAILER_MAX) return BROKEN;", "++c->trailer_bytes;",
      "gateway.test_chunks", "trailers are bounded")
_rule("head.names", "gateway/http/head.c",
      'if (!is_token(name)) return refuse(r, 400, "the name of a field is not a token");', "",
      "gateway.test_head", "no space stands before a colon")
_rule("head.bare-lf", "gateway/http/head.c",
      "if (lf == *at || lf[-1] != '\\r')", "if (lf == *at)",
      "gateway.test_head", "a line ends with CR LF")
_rule("tls.swapped", "gateway/http/listener.c",
      "all[i]->current = fresh[i];", "old = fresh[i];",
      "gateway.test_listener", "a reload shows the new certificate")
_rule("tls.whole-or-not", "gateway/net/tls.c",
      "if (SSL_CTX_check_private_key(ctx) != 1) {", "if (SSL_CTX_check_private_key(ctx) != 1 && !ctx) {",
      "gateway.test_listener", "a key that is another certificate's is refused")
_rule("networks.blocks", "gateway/http/networks.c",
      "if (memcmp(here.b, there.b, sizeof(here.b)) == 0) return true;", "if (memcmp(here.b, there.b, 1) == 0) return true;",
      "gateway.test_networks", "an address is in its block")
_rule("networks.proxies", "gateway/http/networks.c",
      "if (!*proxies || !networks_hold(proxies, &peer)) return peer;", "if (!*proxies) return peer;",
      "gateway.test_networks", "only a trusted proxy says for whom it speaks")
_rule("lobby.tls-after-a-record", "gateway/net/visitor.c",
      "return whole ? VISITOR_READY : VISITOR_READS;", "return VISITOR_READY;",
      "gateway.test_lobby", "a connection has no TLS object before its first record is complete")
_rule("lobby.refused-are-few", "gateway/net/lobby.c",
      "return l->n_refused < LOBBY_REFUSED_MAX;", "return true;",
      "gateway.test_lobby", "connections over a limit that wait for an answer are few")
_rule("lobby.queue-has-an-end", "gateway/net/lobby.c",
      "l->n_ready + l->n_serving < l->o.n_workers + l->o.n_queue", "true",
      "gateway.test_lobby", "requests beyond the workers and the queue are refused")
_rule("cascade.checked", "gateway/openai/completion_cascade.c",
      "return s->bounded && !(least_mean(c) >= s->least);", "return false;",
      "e2e.test_stacks", "an answer of a cascade that fails its check is not sent")
_rule("cause.unfit-is-its-own", "engine/sched/telemetry.c",
      ".unloaded = rq->adapter_id != 0 && !rq->run.lora,", ".unloaded = rq->adapter_id != 0,",
      "engine.test_sched", "a request that cannot fit beside its adapter did not miss for the adapter's load")
_rule("cascade.held", "gateway/openai/completion.c",
      "bool sent = c->rq.stream && !c->use.cascade.held;", "bool sent = c->rq.stream;",
      "e2e.test_stacks", "nothing of an answer is streamed before its checks")
_rule("lobby.requests-first", "gateway/net/lobby.c",
      "return !v->is_stream && !v->shaken;", "return false;",
      "gateway.test_lobby", "requests do not wait for others' handshakes")
_rule("lobby.oldest-gives-way", "gateway/net/lobby.c",
      "lobby_end(l, l->phase[order[i]].first);", "lobby_end(l, l->phase[order[i]].last);",
      "gateway.test_lobby", "the oldest idle connection of a small plane gives way")
_rule("lobby.rest-is-the-next", "gateway/net/lobby.c",
      "else if (v->len && l->o.decided(v->buf, v->len))", "else if (false)",
      "gateway.test_lobby", "a request that came with the one before is answered")
_rule("lobby.reads-on-after-the-answer", "gateway/net/lobby.c",
      "    if (!v->refused) lobby_enter(l, v, PHASE_LINGERING);\n", "",
      "gateway.test_lobby", "a client that sends on can read its answer")
_rule("lobby.unsent-has-a-bound", "gateway/net/lobby.c",
      "    (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));\n", "    (void)unsent;\n",
      "e2e.test_connections", "the kernel holds little of an answer that its client does not read")
_rule("streams.reset-is-seen", "gateway/net/streams.c",
      "    s->over = true;\n    close_pair(s);\n", "    s->over = true;\n",
      "gateway.test_streams", "a worker sees that its stream was reset")
_rule("streams.reset-leaves-the-queue", "gateway/net/streams.c",
      "if (!s->returned && !lobby_withdraw(l, &s->v)) return false;", "if (!s->returned) return false;",
      "gateway.test_streams", "no worker is given a stream that was reset")
_rule("streams.count", "gateway/net/streams.c",
      "if (!l->o.peers || c->n_all == 1) return true;", "if (l->o.peers) return true;",
      "gateway.test_streams", "each stream beyond the first counts as a connection")
_rule("streams.worker-counts", "gateway/net/streams.c",
      "        s->counted = true; /* the worker's request still counts against the client */\n        v->counted = false;\n", "        v->counted = true;\n",
      "gateway.test_streams", "what a worker does counts, also when its client is gone")
_rule("streams.cut", "gateway/net/streams.c",
      "return s->v.cut ? H2_CUT : H2_ALL_READ;", "return H2_ALL_READ;",
      "gateway.test_streams", "an answer that is not whole does not look whole")
_rule("streams.unread-makes-room", "gateway/net/streams.c",
      "if (oldest && l->n_streams >= 2 * (l->o.n_workers + l->o.n_queue)) streams_due(l, oldest);", "(void)oldest;",
      "gateway.test_streams", "answers that nobody reads take no more descriptors than there is room for")
_rule("streams.idle", "gateway/net/streams.c",
      "phase p = c->n_live ? PHASE_WORKING : c->asked ? PHASE_KEPT : PHASE_HEAD;", "phase p = PHASE_WORKING;",
      "gateway.test_streams", "a connection without streams ends")
_rule("h2.resets", "gateway/net/h2.c",
      "hd->type == NGHTTP2_RST_STREAM ? RESET_COST : 1", "0",
      "e2e.test_http2", "a client that resets its streams at once is stopped")
_rule("h2.continuations", "gateway/net/h2.c",
      "++h->n_continuations > H2_CONTINUATIONS_MAX ? spend(h, H2_CALM_MAX + 1) : 0", "0",
      "e2e.test_http2", "a head does not go on for ever")
_rule("h2.bombs", "gateway/net/h2.c",
      "    h->listed += n + n_value + FIELD_COST;\n", "",
      "e2e.test_http2", "a head does not unpack to more than its limit")
_rule("h2.body-may-stop", "gateway/net/streams.c",
      "if (s->late > LATE_BODY_BYTES) h2_stop_body(s->of->h, s->id);", "(void)s;",
      "e2e.test_http2", "a client whose body is refused hears that it may stop")
_rule("peers.per-client", "gateway/net/peers.c",
      "(*at)->n >= p->max_per_client", "(*at)->n > p->max_per_client",
      "gateway.test_peers", "one client takes no more connections than it may")

# ---- why a promise broke ----------------------------------------------------------------------

_rule("cause.most", "engine/watch/cause.c",
      "if (held <= most) continue;", "if (held <= 0 || most > 0) continue;",
      "engine.test_cause", "the delay that holds the most is the cause")
_rule("cause.own-first", "engine/watch/cause.c",
      "us[MISS_NONE] > target_us ? us[MISS_NONE] - target_us : 0", "us[MISS_NONE] > 0 * target_us ? us[MISS_NONE] : 0",
      "engine.test_cause", "what a request needs itself comes out of the target first")
_rule("cause.no-more-than-there-was", "engine/watch/cause.c",
      "us = at_most(us, *left);", "us = us > 0 ? us : 0;",
      "engine.test_cause", "no more time is attributed than has passed")
_rule("cause.under-way", "adapters/residency/residency.c",
      "    under_way_add(rs->going, clock_now_us(), disk_us, load_us);\n", "",
      "e2e.test_causes", "what a load has waited for the disk counts before it ends")
_rule("cause.base-waits-for-no-adapter", "engine/watch/cause.c",
      "if (c->state == CAUSE_WAITS && c->adapter)", "if (c->state == CAUSE_WAITS)",
      "engine.test_cause", "the base waits for no adapter")
_rule("cause.own-rows-are-no-crowd", "engine/watch/cause.c",
      "(k == class ? c->rows_us : 0)", "(k == class ? 0 : 0)",
      "engine.test_cause", "its own rows are not beside it")
_rule("cause.worse-target", "engine/watch/cause.c",
      "life->ttft_late_us >= life->tpot_late_us", "life->ttft_late_us >= 0",
      "engine.test_cause", "of two targets the one counts that was missed by more")
_rule("cause.slow-steps", "engine/sched/sched_cause.c",
      "sc->lost.sums.us[MISS_MACHINE] += (int64_t)(took - steady);", "",
      "engine.test_sched_causes", "a step longer than the model knows is the machine's")
_rule("cause.open-door", "engine/sched/sched_cause.c",
      "sc->lost.door_us = open ? now : 0;", "sc->lost.door_us = open ? 0 * now : 0;",
      "engine.test_sched_causes", "with free seats an adapter is what is waited for")
_rule("cause.gave-way", "engine/sched/sched_plan.c",
      "sched_cause_gave_way(sc, rq, now);", "",
      "engine.test_sched_causes", "a seat taken away is pre-emption")
_rule("cause.copies", "engine/sched/sched_cause.c",
      "sc->lost.sums.us[why] += now - began_us;", "sc->lost.sums.us[why] += 0;",
      "engine.test_sched_causes", "copies to host memory are swap")
_rule("cause.counted", "engine/sched/telemetry.c",
      "count(&c->cause[v.why]);", "",
      "engine.test_telemetry", "each miss is counted under its cause")
_rule("cause.in-the-book", "gateway/watch/stats_book.c",
      "if (row->missed) c->cause[row->missed]++;", "",
      "gateway.test_stats_journal", "each miss is counted under its cause in /stats")
_rule("cause.in-the-spool", "storage/meter_file.c",
      ".missed = (uint32_t)r->missed,", "",
      "storage.test_settler", "the cause is in the usage row, also through the spool")

# ---- prices and webhooks ---------------------------------------------------------------------------

_rule("prices.half-up", "storage/price.c",
      "rest = PER_TOKENS / 2;", "rest = 0;",
      "storage.test_price", "a cost is rounded half up")
_rule("prices.reserved", "storage/price.c",
      "p->cached > p->prompt ? prompt : 0", "0",
      "storage.test_price", "what is reserved covers a cache that costs more")
_rule("prices.in-the-spool", "storage/meter_file.c",
      ".cost = r->cost};", "};",
      "storage.test_settler", "a row's cost goes through the spool")
_rule("prices.of-an-older-slot", "storage/meter_file.c",
      "if (s->sum == sum_of(o, sizeof(*o)))", "if (o)",
      "storage.test_settler", "a slot of an older version has no price")
_rule("prices.replaced", "storage/ledger.c",
      "output_tokens=output_tokens-?5, cost=cost-?6", "output_tokens=output_tokens-?5",
      "storage.test_ledger", "a later attempt takes the cost of the earlier one out of the day")
_rule("prices.budget", "gateway/limits.c",
      "check_budget(cost, tl->cost_per_day, tl->cost_per_month, of->amount[OF_COST], why);",
      "check_budget(cost, 0, 0, of->amount[OF_COST], why);",
      "gateway.test_limits", "a budget in money refuses")
_rule("prices.lease-id", "gateway/limits_lease.c",
      "a->kind == OF_COST ? 0 - a->id : a->id;", "a->id;",
      "gateway.test_limits_lease", "a fleet's budgets of tokens and of costs are apart")
_rule("prices.surcharge", "gateway/openai/completion_admit.c",
      "    add_surcharge(c, c->use.adapter, &p);", "    add_surcharge(c, NULL, &p);",
      "e2e.test_prices", "an adapter's surcharge is added")
_rule("webhooks.signed-time", "gateway/watch/webhooks.c",
      "k->id, (long long)at_s, k->body", "k->id, (long long)at_s + 1, k->body",
      "e2e.test_webhooks", "the signature covers the timestamp that is sent")
_rule("webhooks.saved", "gateway/watch/webhooks.c",
      "        if (!write_line(h->fd, k->body))", "        if (0 && !write_line(h->fd, k->body))",
      "e2e.test_webhooks", "an event that waits outlives a kill")
_rule("webhooks.retried", "gateway/watch/webhooks.c",
      "    if (end == HOOK_LATER) return;", "",
      "e2e.test_webhooks", "an event is kept until it is accepted")
_rule("webhooks.bounded", "gateway/watch/webhooks.c",
      "bool full = h->stats.n_waiting >= WEBHOOKS_MAX;", "bool full = false;",
      "gateway.test_webhooks", "at most WEBHOOKS_MAX events wait")

# ---- bases as they lie on the disk ---------------------------------------------------------------

_rule("quant.turned", "engine/model/stored.h",
      "return head * s->turned + 2 * (at % half) + at / half;",
      "return head * s->turned + at + 0 * half;",
      "engine.test_quant", "rows of q and k of a llama's GGUF are put back")
_rule("quant.zero-off", "engine/model/stored_folder.c",
      "code_in(word, s->bits, row % per) + s->zero_off;", "code_in(word, s->bits, row % per);",
      "engine.test_quant", "zero points of GPTQ version 1 are stored less one")
_rule("quant.order", "engine/model/stored_folder.c",
      "order[(int)g * group + fill[g]++] = k;", "order[(int)g * group + fill[g]++] = (int)g * group;",
      "engine.test_quant", "columns of desc_act go back to their places")
_rule("quant.unknown-key", "engine/files/gguf_config.c",
      'if (!is) return refuse(m, name, "is not supported");', "(void)is;",
      "engine.test_quant", "a key of the architecture that is not known is refused")
_rule("quant.rope", "engine/model/rope.c",
      "/ (divisors ? divisors[i] : 1.0F);", "/ (divisors ? 1.0F : 1.0F);",
      "engine.test_conformance", "a GGUF's divisors of the rotation are applied")
_rule("gguf.places", "engine/files/gguf.c",
      "t->bytes > g->file_bytes - data0 - t->offset)", "t->bytes > g->file_bytes)",
      "engine.test_quant", "a tensor lies inside its file")
_rule("gguf.words", "engine/files/gguf_merges.c",
      "return a->score > b->score ? -1 : 1;", "return a->score > b->score ? 1 : -1;",
      "engine.test_gguf_words", "the best score merges first")
_rule("adapters.other-base", "adapters/store/publish.c",
      "if (!format || strncmp(", "if (format || strncmp(",
      "e2e.test_quantised", "an adapter that names a base in another form gets a line in the log")
_rule("ended.slowest-stay", "gateway/watch/ended.c",
      "if (!s->number || s->row.usage.duration_ms < row->duration_ms)", "if (true)",
      "gateway.test_ended", "a quick request takes no slow one's place")
_rule("ended.adapter-is-no-queue", "gateway/watch/ended.c",
      "p.queue_us = waited - p.adapter_us;", "p.queue_us = waited;",
      "gateway.test_ended", "what was waited for the adapter is no time in the queue")
_rule("history.is-bounded", "storage/watch/history.c",
      "if (!rc) rc = forget(db, HISTORY_FINE_S,", "if (rc) rc = forget(db, HISTORY_FINE_S,",
      "storage.test_history", "fine spans are kept for an hour alone")
_rule("history.breach-ends-when-calm", "gateway/watch/stats_history.c",
      "if (*calm < CALM_SPANS) return false;", "",
      "gateway.test_stats_history", "one quiet span is no end of a breach")
_rule("history.few-are-no-breach", "gateway/watch/stats_history.c",
      "!is_broken(BREACH_LEAST, c->missed", "!is_broken(1, c->missed",
      "gateway.test_stats_history", "one or two that missed are no breach")
_rule("history.overdue-once", "gateway/watch/stats_history.c",
      "if (!told || !row->missed) return;", "if (!told || row->missed) return;",
      "gateway.test_stats_history", "who was counted as missed while waiting is not counted again at its end")
_rule("history.ended-before", "gateway/watch/stats_history.c",
      " || just_ended(h, r->id))", " || (just_ended(h, r->id) && !r->id))",
      "gateway.test_stats_history", "who has ended since the picture was taken is not counted twice")
_rule("history.refused-missed", "gateway/watch/stats_book.c",
      "c->missed += why != MISS_NONE;", "",
      "gateway.test_stats_history", "what the server refuses has missed")
_rule("history.present-and-before", "gateway/watch/stats_history.c",
      "c->missed + last->missed, c->met + last->met", "c->missed, c->met",
      "gateway.test_stats_history", "few and slow requests are a breach, too")
_rule("board.overdue", "engine/sched/sched_cause.c",
      "if (!late || rq->times.first_token_us ||", "if (late || rq->times.first_token_us ||",
      "engine.test_sched", "the board says who waits beyond the target")
_rule("book.busiest-first", "gateway/watch/stats_book.c",
      "list[at - 1].c.output_tokens < en->c.output_tokens", "list[at - 1].c.output_tokens > en->c.output_tokens",
      "gateway.test_stats_journal", "the busiest adapters have the series")
_rule("top.columns-scroll", "tui/top/view_layout.c",
      "if (out->n > 0 && skip-- > 0) continue;", "if (out->n > 0 && skip-- > 99) continue;",
      "tui.test_view", "no column is lost on a narrow screen")
_rule("top.group-sums", "tui/top/view_layout.c",
      "a += b;", "a = b;",
      "tui.test_view", "a group's heading has its sums")
_rule("top.ended-slowest", "tui/top/view_menu.c",
      "slow ? \"/admin/v1/requests?state=ended&limit=100&slow=1\"", "0 ? \"/admin/v1/requests?state=ended&limit=100&slow=1\"",
      "tui.test_view", "sorted by what they took, the slowest of the hour are asked for")
_rule("init.fills-as-owner", "gateway/start/init.c",
      "if (!rc) rc = become_owner(c->data.dir, e);", "",
      "e2e.test_service", "what init makes is the server's user's")
_rule("init.model-first", "gateway/start/init.c",
      "return model_config_read(path, &mc, e) ?", "return false && model_config_read(path, &mc, e) ?",
      "e2e.test_service", "init refuses a folder that is no model before it writes anything")
_rule("gguf.tekken-slash", "engine/files/gguf_words.c",
      "[\\\\\\\\r\\\\\\\\n/]*|", "[\\\\\\\\r\\\\\\\\n]*|",
      "engine.test_gguf_words", "a name of llama.cpp's stands for the steps of the model's own tokenizer.json")
_rule("dev.nothing-stays", "gateway/start/dev.c",
      "if (d->temporary[0] && !disk_remove_folder(", "if (d->temporary[0] && !d->file[0] && !disk_remove_folder(",
      "e2e.test_service", "the folder that serve --dev has made for itself is removed at the end")
_rule("cert.ours-alone", "gateway/net/devcert.c",
      "else if (!is_ours(&old))", "else if (false && !is_ours(old))",
      "e2e.test_service", "a certificate that somebody else has signed is not replaced")

# ---- the configuration of a running server ---------------------------------------------------

_rule("live.room-of-the-start", "gateway/config/config_items.c",
      "return wanted->engine.max_queued <= runs->queue_room;", "return true;",
      "gateway.test_change", "the queue grows to what it was made for, and no further")
_rule("live.other-classes", "gateway/config/config_items.c",
      "return same_classes(runs, wanted);", "return true;",
      "gateway.test_change", "other classes are not taken by a running server")
_rule("live.pinned", "gateway/config/live.c",
      "    held->pins++;\n", "",
      "gateway.test_change", "who reads a configuration keeps it until it lets go")
_rule("live.whole", "gateway/config/change.c",
      "    err_code rc = config_check(&ch->wanted, e);\n", "    err_code rc = ERR_NONE;\n",
      "gateway.test_change", "a change is checked as a whole, and taken whole or not at all")
_rule("live.set-stays", "gateway/config/change.c",
      "lay_on_top(ch, &ch->trial_sources, &ch->set);\n    rc = make_next", "ch->wanted = ch->trial_sources;\n    rc = make_next",
      "gateway.test_change", "what was set by name lies on top of a reload")
_rule("live.secrets", "gateway/rest/admin_config.c",
      "    config_hide(item->value);\n", "",
      "e2e.test_reload", "the admin API shows no secret of an option")
_rule("live.engine-told", "gateway/start/parts.c",
      "sched_adjust(s->engine.sched, classes, (int)c->engine.max_queued);", "(void)classes;",
      "e2e.test_reload", "the engine has the classes that are in force")
_rule("fair.weights-settled", "engine/sched/fair.c",
      "f->class_settled[j->slo] += j->charged * (before[j->slo] - f->class_unit[j->slo]);", "continue;",
      "engine.test_fair", "what was charged stays when a class's weight changes")

# ---- loratop ---------------------------------------------------------------------------------

_rule("loratop.back-where-it-was", "tui/top/view.c",
      "        narrow(t, p->class_name, p->tenant);\n", "",
      "tui.test_view", "Esc shows again what Enter was pressed in")
_rule("loratop.at-a-limit", "tui/top/view_columns.c",
      "bool at = share_of(r, most) >= 1 ||", "bool at =",
      "tui.test_view", "who has used all of a limit is at it")
_rule("loratop.rates-fade", "tui/top/topdata.c",
      "        s->events[k] *= stays;\n", "",
      "tui.test_view", "refusals and loads a minute are of the last minute")

_rule("loratop.past-red", "tui/top/view_panels.c",
      "late[i / per] |= target > 0 && ms > target;", "",
      "tui.test_view", "spans that were later than the target are red")
_rule("history.most-first", "gateway/watch/stats_history.c",
      "if (left[k] > left[most]) most = k;", "if (left[k] && !left[most]) most = k;",
      "gateway.test_stats_history", "the cause of most misses stands first in a verdict")
_rule("loractl.why-now", "tui/ctl/loractl_why.c",
      "if (!for_programs(c)) say_now(c, stats, class);", "",
      "e2e.test_causes", "why a class is slow begins with what is so now")

# ---- loractl ---------------------------------------------------------------------------------

_rule("loractl.only-near", "tui/near.c",
      "n < 3 ? 0 : n < 6 ? 2 : 3", "20",
      "e2e.test_loractl_ease", "a word that is not near to what was typed is not offered")
_rule("loractl.names-harmless", "tui/ctl/loractl_completion.c",
      "*name != '-' && strspn(name, fit) == strlen(name)", "strlen(fit)",
      "e2e.test_loractl_ease", "a shell is offered no name that it would expand")
_rule("loractl.fields-known", "tui/ctl/loractl_fields.c",
      "if (!known && !any_has(rows, path)) return", "if (!any_has(rows, path) && false) return",
      "e2e.test_loractl_ease", "a field that nothing has is refused")
_rule("loractl.no-color", "tui/table.c",
      "!(no && *no) && term", "(no || term) && term",
      "e2e.test_loractl_ease", "NO_COLOR is heeded")
_rule("loractl.watch-goes-on", "tui/ctl/loractl_watch.c",
      "bool away = !first && (status == CTL_REFUSED || status == CTL_UNREACHABLE);", "bool away = !first && status == CTL_UNREACHABLE;",
      "e2e.test_loractl_ease", "who watches sees the server come back")
_rule("loractl.most", "tui/ctl/loractl_causes.c",
      "if (!most || v->valuedouble > most->valuedouble) most = v;", "if (!most) most = v;",
      "e2e.test_loractl_ease", "the biggest cause of misses is the one that is named")
_rule("auth.scope-named", "gateway/auth.c",
      "if (!(scope & s)) continue;", "",
      "gateway.test_auth", "who lacks a scope is told which, not all there are")

MUTANTS = _rows
