"""llama.cpp's own HTTP server, from the package xllamacpp. Runs in the rivals' environment until it is terminated.

usage: .venv-rivals/bin/python -m bench.rivals.llama_server MODEL.gguf PORT THREADS SLOTS CONTEXT_PER_SLOT
"""

import signal
import sys

import xllamacpp


def main() -> None:
    model, port, threads, slots, context_per_slot = sys.argv[1], *map(int, sys.argv[2:])
    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    parameters.n_parallel = slots
    parameters.n_ctx = slots * context_per_slot
    parameters.ui = False
    # Copies of finished prompts in main memory would only cost time: no prompt comes twice.
    parameters.cache_ram_mib = 0
    parameters.cache_idle_slots = False
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
