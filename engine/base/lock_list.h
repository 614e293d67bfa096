/* lock_list.h -- every lock of the programs, in the order in which locks are taken.
 *
 * X(id, name, waits, under, what it guards)
 *
 *   name   struct.field
 *   waits  MAY_WAIT: its holder may sleep on another lock's condition, which mostly means that it
 *          is held over a write of the database.  NO_WAIT: its holder never does, so who takes it
 *          is not held up by a disk.
 *   under  the locks that may be held when it is taken, and no others: all stand further up.
 *          ALONE: none.  ANYTHING: whatever is held.
 *
 * A new lock gets a line here; a new pair of locks a name under `under`, if it must be.  Checked by
 * lock.h in builds for developers; docs/design/locks.md is made from this file.
 */
#ifndef ENGINE_BASE_LOCK_LIST_H
#define ENGINE_BASE_LOCK_LIST_H

/* clang-format off */
#define LOCK_LIST(X) \
    X(STATS, "stats.mu", MAY_WAIT, ALONE, \
      "the picture that /stats shows, its journal, the samples of the seconds") \
    X(LIMITS, "limits.mu", MAY_WAIT, UNDER(STATS), \
      "buckets and budgets of tenants, keys and adapters; over the ledger's read at first sight") \
    X(CHANGE, "change.mu", NO_WAIT, ALONE, \
      "changes of the configuration, one after another, over the files that are read") \
    X(STOREROOM_TAKING, "storeroom.taking", NO_WAIT, ALONE, \
      "room on the disk: the look, what others lend, and the allocation are one step") \
    X(STAGING, "staging.mu", NO_WAIT, UNDER(STOREROOM_TAKING) | UNDER(CHANGE), \
      "open uploads, their offsets and marks") \
    X(STAGED_WRITER, "staged_writer.mu", NO_WAIT, UNDER(STOREROOM_TAKING) | UNDER(STAGING), \
      "one file of an upload, over each write to it and each cut") \
    X(STOREROOM, "storeroom.mu", NO_WAIT, UNDER(STOREROOM_TAKING) | UNDER(STAGING), \
      "how many bytes each tenant's uploads are to bring") \
    X(REGISTRY_FILES, "registry.files", MAY_WAIT, ALONE, \
      "the folders of versions: one is made, linked or removed at a time") \
    X(REGISTRY_CHANGE, "registry.change", MAY_WAIT, UNDER(REGISTRY_FILES), \
      "changes of adapters, one after another, over the write of their rows") \
    X(RESIDENCY, "residency.mu", NO_WAIT, UNDER(STATS), \
      "which adapter lies in which tier, the loaders' queue, copies in host memory") \
    X(REGISTRY, "registry.mu", NO_WAIT, \
      UNDER(STATS) | UNDER(STAGING) | UNDER(REGISTRY_FILES) | UNDER(REGISTRY_CHANGE), \
      "the tables of adapters, versions, aliases and pins") \
    X(DEPOT, "depot.mu", NO_WAIT, ALONE, \
      "what is brought from the object store, who waits for it, what is to be looked at there") \
    X(TENANTS_CHANGE, "tenant_cache.change", MAY_WAIT, ALONE, \
      "changes of tenants, one after another, over the write of their rows") \
    X(KEYS_CHANGE, "key_cache.change", MAY_WAIT, ALONE, \
      "changes of keys, one after another, over the write of their rows") \
    X(LOCKOUTS, "lockouts.mu", NO_WAIT, UNDER(TENANTS_CHANGE), \
      "the slots of the file of lock-outs, and the tickets of those who wait") \
    X(TENANTS, "tenant_cache.lock", NO_WAIT, \
      UNDER(STATS) | UNDER(TENANTS_CHANGE) | UNDER(LOCKOUTS), \
      "the copy of all tenants; many may read") \
    X(KEYS, "key_cache.lock", NO_WAIT, UNDER(KEYS_CHANGE) | UNDER(LOCKOUTS), \
      "the copy of all keys; many may read") \
    X(STORE_QUEUE, "store.mu", NO_WAIT, \
      UNDER(STATS) | UNDER(REGISTRY_FILES) | UNDER(REGISTRY_CHANGE) | UNDER(TENANTS_CHANGE) | \
      UNDER(KEYS_CHANGE), \
      "the storage writer's queue and its counts") \
    X(FLEET_DESK, "desk.mu", MAY_WAIT, ALONE, \
      "a session with the fleet's database, over each question and its answer") \
    X(FLEET_BOOKS, "books.mu", NO_WAIT, ALONE, \
      "the end of the thread that ships usage") \
    X(FLEET, "fleet.mu", NO_WAIT, UNDER(STATS) | UNDER(FLEET_DESK), \
      "how far the mirror is, whether the fleet's database answers, rows that wait to be shown") \
    X(STORE_READERS, "store.read_mu", NO_WAIT, \
      UNDER(LIMITS) | UNDER(REGISTRY_CHANGE) | UNDER(TENANTS_CHANGE) | UNDER(KEYS_CHANGE), \
      "which of the reading connections are in use") \
    X(STORE_IDS, "store.id_mu", NO_WAIT, \
      UNDER(STAGING) | UNDER(REGISTRY_FILES) | UNDER(REGISTRY_CHANGE) | UNDER(TENANTS_CHANGE) | \
      UNDER(KEYS_CHANGE), \
      "the newest id that was given out") \
    X(SETTLER, "settler.mu", NO_WAIT, UNDER(STATS), \
      "the spool: ended slots in the order of their ends, and who waits for them") \
    X(METER_FILE, "meter_file.mu", NO_WAIT, UNDER(STATS), \
      "which slots of the meter file are free, and the counts of the others") \
    X(SCHED, "sched.mu", NO_WAIT, UNDER(STATS) | UNDER(CHANGE), \
      "the engine's inbox, its statistics, the forecast that admission uses") \
    X(BOARD, "board.mu", NO_WAIT, UNDER(STATS), \
      "the picture of the queue; the engine only tries it") \
    X(TELEMETRY, "telemetry.mu", NO_WAIT, ALONE, \
      "how many requests of each adapter run and wait") \
    X(GRAMMAR_MAKER, "grammar_maker.mu", NO_WAIT, UNDER(CHANGE), \
      "the cache of grammars, and the helper's queue") \
    X(DEVMEM, "devmem.mu", NO_WAIT, UNDER(STATS) | UNDER(RESIDENCY), \
      "the arena's chunks: free, pages, leases; for kv_pool its tables, too") \
    X(PACE, "pace.mu", NO_WAIT, UNDER(STATS) | UNDER(RESIDENCY), \
      "how many bytes loaders may still move in this step") \
    X(CUDA_DEVICES, "tp_state.mu", NO_WAIT, UNDER(STATS) | UNDER(RESIDENCY), \
      "memory is taken and given back on all devices that share a model, in one order") \
    X(CUDA_BLOCKS, "cuda_memory.mu", NO_WAIT, \
      UNDER(STATS) | UNDER(RESIDENCY) | UNDER(CUDA_DEVICES), \
      "which blocks of a device's memory are in use") \
    X(CUDA_STAGES, "cuda_memory.stage_mu", NO_WAIT, \
      UNDER(STATS) | UNDER(RESIDENCY) | UNDER(CUDA_DEVICES), \
      "the pinned pieces that uploads go through, and their stream") \
    X(THREAD_POOL, "thread_pool.mu", NO_WAIT, ALONE, \
      "the sleep of the compute threads") \
    X(STATS_BOOK, "book.mu", NO_WAIT, UNDER(STATS), \
      "what became of requests, by tenant, adapter and class") \
    X(STATS_HISTORY, "stats_history.mu", NO_WAIT, UNDER(STATS), \
      "what ended in the spans of history that are under way; breaches") \
    X(ENDED, "ended.mu", NO_WAIT, ALONE, \
      "the last requests that ended, and the slowest") \
    X(REFUSALS, "refusals.mu", NO_WAIT, ALONE, \
      "the hour's refusals by limits") \
    X(STATS_EVENTS, "stats.events_mu", NO_WAIT, UNDER(STATS), \
      "events that the next picture is to show") \
    X(BATCHES, "batch_runner.mu", NO_WAIT, ALONE, \
      "the batches that have not ended, and which of their lines run") \
    X(BACKGROUND, "background.mu", NO_WAIT, ALONE, \
      "the responses in the background that have not ended") \
    X(MOVER, "mover.mu", NO_WAIT, ALONE, \
      "requests that are to go on at another node") \
    X(ROSTER, "roster.mu", NO_WAIT, ALONE, \
      "the table of the fleet's other nodes") \
    X(CARRY, "carry.mu", NO_WAIT, ALONE, \
      "how many requests have their keys and values brought here, and what that took") \
    X(EFFECT, "effect_probe.mu", NO_WAIT, ALONE, \
      "versions whose effect on the logits is to be measured") \
    X(FIRSTS, "firsts.mu", NO_WAIT, ALONE, \
      "adapters that are fetched because they were asked for, and those that were not there") \
    X(BATCH_JOURNAL, "batch_journal.mu", NO_WAIT, ALONE, \
      "the end of a batch's two files, over each write of a line") \
    X(INFLIGHT, "inflight.mu", NO_WAIT, ALONE, \
      "the list of requests that run") \
    X(STACKS, "stacks.mu", NO_WAIT, UNDER(STATS), \
      "the table of stacks of adapters, and who holds them") \
    X(RESIDENT, "resident.mu", NO_WAIT, ALONE, \
      "which blocks of the weights are in memory, and the queue of reads and drops") \
    X(SELF_CHECK, "self_check.mu", NO_WAIT, ALONE, \
      "the sleep between two checks of the database") \
    X(NICE_POOL, "nice_pool.mu", NO_WAIT, ALONE, \
      "work that waits for a thread of low priority") \
    X(VOCABULARIES, "vocabularies.mu", NO_WAIT, ALONE, \
      "the list of tokenizers with an adapter's added tokens") \
    X(LIVE, "live.mu", NO_WAIT, UNDER(STATS) | UNDER(CHANGE), \
      "which configuration is in force, and how many read it") \
    X(LISTENER_TLS, "listener.mu", NO_WAIT, UNDER(CHANGE), \
      "the TLS context for new connections") \
    X(SPANS, "spans.mu", NO_WAIT, ALONE, \
      "the ring of requests whose traces are to be sent") \
    X(WEBHOOKS, "webhooks.mu", NO_WAIT, UNDER(STATS), \
      "the queue of events that are to be posted") \
    X(PEERS, "peers.mu", NO_WAIT, UNDER(CHANGE), \
      "connections by client") \
    X(LOBBY, "lobby.mu", NO_WAIT, ALONE, \
      "connections whose request waits for a worker, and those that workers have handed back") \
    X(DEADLINES, "reaper.mu", NO_WAIT, ALONE, \
      "deadlines of sockets, and whom to wake when a client goes") \
    X(REQUEST_SIGNAL, "request_signal.mu", NO_WAIT, UNDER(DEADLINES), \
      "what one worker waits for: tokens of its requests, its client's end") \
    X(FEED, "feed.mu", NO_WAIT, ALONE, \
      "loratop: what one server's thread has read, and what it is to do") \
    X(TLS_RESERVE, "reserve.mu", NO_WAIT, ANYTHING, \
      "OpenSSL's memory for when malloc() fails, which may be anywhere")
/* clang-format on */

#define LOCK_ENUM_(id, name, waits, under, guards) LOCK_##id,
typedef enum { LOCK_NONE_, LOCK_LIST(LOCK_ENUM_) LOCK_END_ } lock_rank;
#undef LOCK_ENUM_

#endif
