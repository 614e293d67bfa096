"""peer_server.py -- llama.cpp's own HTTP server: peer_server.py GGUF PORT SLOTS CONTEXT [--mean] [ADAPTER_GGUF]...

CONTEXT tokens a slot.  --mean: it makes embeddings, of the mean, and no text.  Adapters are loaded with scale 0: a request names the ones that it wants.  Writes a line
when its libraries are in memory, before it opens the model: a C++ server would begin there.  Runs until SIGTERM."""
import signal
import sys

import xllamacpp as xlc


def main():
    model, port, slots, context, *adapters = sys.argv[1:]
    p = xlc.CommonParams()
    p.model.path = model
    p.hostnames = ["127.0.0.1"]
    p.port = int(port)
    p.n_parallel = int(slots)
    p.n_ctx = int(slots) * int(context)
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 2
    if adapters[:1] == ["--mean"]:
        adapters.pop(0)
        p.embedding, p.pooling_type = True, xlc.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    p.lora_adapters = [xlc.CommonAdapterLoraInfo(path, 0.0) for path in adapters]
    print("begins", flush=True)
    server = xlc.Server(p)
    print(server.listening_address, flush=True)
    signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    main()
