// Speed and memory of simulate() on rings of 8 to 16384 ranks, in turns with a bare heap that walks the same ring,
// since machines differ twofold and a busy one more. Run: benchmark_ring [RECORD.h5 [RANKS...]], on one core; minutes.
//
// An event is the end of an attend or of a hop, for both: what else the simulator needs events for is its own affair.
// The whole of simulate() is timed, the schedule's making is not. Times are processor times of the thread. Beyond 1024
// ranks a ring is cut off after 1024 steps.
//
// Ranks of this ring cannot differ from host to host, so that simulate() plays one host of eight, or one rank of a ring
// in one host, and its events stand for those of all ranks, which the heap walks one by one. Beside it stands a play of
// all ranks, as of rings that cannot be folded but whose ranks are alike: one stream of operations serves them all.
//
// What keeps a play of all ranks from the heap's speed is work spread over some forty functions, none of which takes a
// fifth: reading and pricing three operations of a rank's step, starting and ending them, the queue, and with sharing
// linking, solving and moving what became slower. At 16384 ranks memory is waited for: huge pages make it 5 % faster,
// prefetching what comes next 2 to 4 %. Of a fold of 8 ranks onto one, set-up is a fifth.
#include "experiments/record/record.hpp"
#include "heap_ring.hpp"
#include "scenario.hpp"
#include "short_ring.hpp"
#include "sim/cost/cost.hpp"
#include "sim/speed/fold.hpp"

#include <malloc.h>
#include <array>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <new>

namespace {

// Every allocation of the program is counted, with the 8 bytes that malloc puts before it.
std::size_t allocated = 0, most_allocated = 0;

void* counted(void* memory) {
    if (!memory) throw std::bad_alloc();
    allocated += malloc_usable_size(memory) + 8;
    most_allocated = std::max(most_allocated, allocated);
    return memory;
}

void discount(void* memory) noexcept {
    if (memory) allocated -= malloc_usable_size(memory) + 8;
    std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(std::malloc(bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    const auto line = static_cast<std::size_t>(alignment);
    return counted(std::aligned_alloc(line, (bytes + line - 1) / line * line));
}
void operator delete(void* memory) noexcept { discount(memory); }
void operator delete(void* memory, std::size_t) noexcept { discount(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { discount(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { discount(memory); }

namespace {

using namespace ringlab;
using namespace ringlab::sim;

constexpr int rounds = 3;
constexpr int most_steps = 1024;

/// Of this thread: libraries may have others, which wait busily.
double processor_seconds(const std::function<void()>& work) {
    const auto now = [] {
        timespec time{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    const auto begin = now();
    work();
    return now() - begin;
}

/// Something that is timed: seconds of one ring, by round.
struct Timed {
    int repeats = 1;  // of the ring in one sample
    std::vector<double> seconds{};

    void sample(const std::function<void()>& ring) {
        seconds.push_back(processor_seconds([&] {
                              for (int i = 0; i < repeats; ++i) ring();
                          }) /
                          repeats);
    }
};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/// A way to simulate the ring.
struct Way {
    const char* name;
    bool sharing, fold;
    Timed timed{};
    int played = 0;  // ranks
    double bytes = 0;
};

/// One size of ring: what is timed, and what came out.
class Size {
public:
    Size(int ranks, const Machine& machine)
        : machine_(machine),
          whole_(test::Scenario{.ranks = ranks, .tokens_per_rank = 2048, .query_heads = 32, .kv_heads = 8}.schedule()),
          ring_(*whole_, most_steps),
          steps_(std::min(ranks, most_steps)),
          events_(static_cast<double>(ranks) * (2 * steps_ - 1)) {
        heap_.repeats = repeats(events_);
        for (auto& way : ways_) {
            const auto options = options_of(way);
            way.played =
                Fold(OpSource(ring_, ranks), ring_, machine_, Topology(ranks, machine_, options), options).played();
            way.timed.repeats = repeats(events_ * way.played / ranks);
        }
        const auto alone = options_of(ways_[0]);
        CostModel cost(ring_, machine_, alone);
        const auto attend = [&](int step) {
            layouts::Op op;
            op.pair_count = ring_.pair_count(0, (ranks - step) % ranks);
            op.rows().heads = {0, 32};
            return cost.compute(op, 0);
        };
        first_ = attend(0);
        attend_ = attend(1);
        const auto bytes = ring_.bytes(layouts::Pool::kv, 0, ring_.part(0, {0, 8}));
        for (int rank = 0; rank < ranks; ++rank)
            hops_.push_back(cost.transfer(rank, (rank + 1) % ranks, bytes).whole());
    }

    void round() {
        heap_.sample([&] {
            test::HeapRing ring(first_, attend_, hops_, steps_);
            heap_end_ = ring.run();
            require(static_cast<double>(ring.events()) == events_, "the heap had {} events of {}", ring.events(),
                    events_);
        });
        for (auto& way : ways_) {
            const auto options = options_of(way);
            const auto before = most_allocated = allocated;
            Picoseconds end = 0;
            way.timed.sample([&] { end = simulate(ring_, machine_, options).makespan; });
            way.bytes = static_cast<double>(most_allocated - before) / ring_.ranks();
            // The same ring, but for what hosts take to issue operations.
            require(way.sharing || std::abs(double(end) / double(heap_end_) - 1) < 0.1,
                    "{} ranks: the simulator ends at {} ps and the heap at {}", ring_.ranks(), end, heap_end_);
        }
    }

    void write(experiments::RunWriter& run) const {
        run.attribute("ranks", ring_.ranks());
        run.attribute("steps", steps_);
        run.attribute("events", events_, "1",
                      "ends of attends and hops of all ranks, also of those folded onto others");
        for (const auto& way : ways_) {
            run.attribute(fmt::format("ranks_played_{}", way.name), way.played);
            run.attribute(fmt::format("bytes_per_rank_{}", way.name), way.bytes, "B",
                          "most that simulate() had allocated");
            run.attribute(fmt::format("ratio_{}", way.name), ratio(way), "1",
                          "median over rounds of events per second over the heap's");
            run.attribute(fmt::format("repeats_{}", way.name), way.timed.repeats, "1", "of the ring in one sample");
            run.dataset(fmt::format("seconds/simulate_{}", way.name), way.timed.seconds, {"round"}, "s",
                        "processor time of a ring");
        }
        run.attribute("repeats_heap", heap_.repeats, "1", "of the ring in one sample");
        run.dataset("seconds/heap", heap_.seconds, {"round"}, "s", "processor time of a ring");
    }

    void print() const {
        const auto rate = [&](const Timed& timed) { return events_ / median(timed.seconds) / 1e6; };
        fmt::print("{} ranks x {}: heap {:.1f} M events/s\n", ring_.ranks(), steps_, rate(heap_));
        for (const auto& way : ways_)
            fmt::print("  {:17} {:5} played, {:8.2f} M/s, {:7.2f} of the heap, {:8.3g} s a ring, {:5.0f} B a rank\n",
                       way.name, way.played, rate(way.timed), ratio(way), median(way.timed.seconds), way.bytes);
        std::cout.flush();
    }

private:
    /// Small rings over and over, for about a tenth of a second.
    static int repeats(double events) { return std::max(1, static_cast<int>(2e6 / events)); }

    static SimOptions options_of(const Way& way) {
        auto options = test::rate_options();
        options.sharing = way.sharing;
        options.fold = way.fold;
        return options;
    }

    /// Of neighbours in time.
    double ratio(const Way& way) const {
        std::vector<double> ratios;
        for (std::size_t i = 0; i < heap_.seconds.size(); ++i)
            ratios.push_back(heap_.seconds[i] / way.timed.seconds[i]);
        return median(ratios);
    }

    const Machine& machine_;
    std::unique_ptr<layouts::Schedule> whole_;
    test::ShortRing ring_;
    int steps_;
    double events_;
    Picoseconds first_ = 0, attend_ = 0, heap_end_ = 0;
    std::vector<Picoseconds> hops_;
    Timed heap_;
    std::array<Way, 4> ways_{Way{"alone", false, true}, Way{"sharing", true, true}, Way{"alone_unfolded", false, false},
                             Way{"sharing_unfolded", true, false}};
};

void run_all(int argc, char** argv) {
    const auto machine = test::shipped_machine("h200_cluster");
    std::optional<experiments::Record> record;
    if (argc > 1) {
        auto provenance = experiments::collect_provenance(argc, argv);
        provenance.set("machine", std::string("h200_cluster"));
        provenance.set("machine_text", machine.text);
        record.emplace(argv[1], experiments::RecordMode::overwrite,
                       experiments::RecordHeader{"benchmark_ring",
                                                 "How fast the simulator walks a ring, beside a bare heap that does",
                                                 fmt::format("rounds = {}\n", rounds)},
                       std::move(provenance));
    }
    std::vector<int> all_ranks;
    for (int i = 2; i < argc; ++i) all_ranks.push_back(std::stoi(argv[i]));
    if (all_ranks.empty()) all_ranks = {8, 16, 32, 64, 128, 1024, 16384};
    for (const int ranks : all_ranks) {
        Size size(ranks, machine);
        for (int round = 0; round < rounds; ++round) size.round();
        size.print();
        if (!record) continue;
        experiments::RunWriter run;
        size.write(run);
        record->commit(fmt::format("ring-P{}", ranks), run);
    }
    if (record) record->finish();
}

}  // namespace

int main(int argc, char** argv) {
    try {
        run_all(argc, argv);
    } catch (const std::exception& error) {
        std::cerr << "benchmark_ring: " << error.what() << '\n';
        return 1;
    }
}
