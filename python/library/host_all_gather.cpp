#include "processes/host_all_gather.hpp"
#include "python/library/ringlab_cpu.h"
#include "python/library/status.hpp"

#include <chrono>

using namespace ringlab;
using processes::Clock;
using python::guarded;

struct ringlab_all_gather {
    processes::HostAllGather ranks;
};

namespace {

Clock::duration duration_of(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

extern "C" {

ringlab_status ringlab_all_gather_create(int ranks, size_t bytes, int64_t address[3], ringlab_all_gather** gather) {
    return guarded(RINGLAB_REFUSED, [&] {
        *gather = new ringlab_all_gather{.ranks = {ranks, bytes}};
        const auto own = (*gather)->ranks.address();
        address[0] = own.process;
        address[1] = own.space;
        address[2] = own.descriptor;
    });
}

ringlab_status ringlab_all_gather_open(const int64_t address[3], int rank, int ranks, size_t bytes,
                                       ringlab_all_gather** gather) {
    return guarded(RINGLAB_REFUSED, [&] {
        const processes::SharedMemory::Address of_rank_0{address[0], address[1], address[2]};
        *gather = new ringlab_all_gather{.ranks = {of_rank_0, rank, ranks, bytes}};
    });
}

void ringlab_all_gather_ready(ringlab_all_gather* gather) { gather->ranks.all_have_it(); }

void ringlab_all_gather_leave(ringlab_all_gather* gather) { gather->ranks.leave(); }

void ringlab_all_gather_destroy(ringlab_all_gather* gather) { delete gather; }

ringlab_status ringlab_all_gather_round(ringlab_all_gather* gather, const void* block, double seconds, double limit,
                                        void* blocks, int* complete) {
    return guarded(RINGLAB_BROKEN, [&] {
        if (block) gather->ranks.begin(block);
        *complete = gather->ranks.finish(blocks, duration_of(seconds), duration_of(limit));
    });
}

}  // extern "C"
