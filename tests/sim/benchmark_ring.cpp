// Speed and memory of simulate() on rings of 8 to 16384 ranks, in turns with a bare heap that walks the same ring,
// since machines differ twofold and a busy one more. Run: benchmark_ring [RECORD.h5 [RANKS...]], on one core; minutes.
//
// An event is the end of an attend or of a hop, for both: what else the simulator needs events for is its own affair.
// The whole of simulate() is timed, the schedule's making is not. Times are processor times. Beyond 1024 ranks a ring
// is cut off after 1024 steps. Its ranks are alike, so that one stream of operations serves all of them.
//
// What keeps it from the heap's speed is work spread over some forty functions, none of which takes a fifth: reading
// and pricing three operations of a rank's step, starting and ending them, the queue, and with sharing linking, solving
// and moving what became slower. Set-up is not it: 8 ranks go at the rate of 64. At 16384 ranks memory is waited for:
// huge pages make it 5 % faster, prefetching what comes next 2 to 4 %.
#include "experiments/record/record.hpp"
#include "heap_ring.hpp"
#include "scenario.hpp"
#include "short_ring.hpp"
#include "sim/cost.hpp"

#include <malloc.h>
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

double processor_seconds(const std::function<void()>& work) {
    const auto begin = std::clock();
    work();
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

/// One size of ring: what is timed, and what came out.
class Size {
public:
    Size(int ranks, const Machine& machine)
        : machine_(machine),
          whole_(test::Scenario{.ranks = ranks, .tokens_per_rank = 2048, .query_heads = 32, .kv_heads = 8}.schedule()),
          ring_(*whole_, most_steps),
          steps_(std::min(ranks, most_steps)) {
        // Small rings over and over, for a tenth of a second.
        const auto events = static_cast<double>(ranks) * (2 * steps_ - 1);
        repeats_ = std::max(1, static_cast<int>(1e6 / events));
        events_ = events * repeats_;
        const auto alone = options(false);
        CostModel cost(ring_, machine_, alone);
        const auto attend = [&](int step) {
            layouts::Op op;
            op.cells = ring_.cells(0, (ranks - step) % ranks);
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
        heap_.push_back(processor_seconds([&] {
            for (int i = 0; i < repeats_; ++i) {
                test::HeapRing ring(first_, attend_, hops_, steps_);
                heap_end_ = ring.run();
                require(static_cast<double>(ring.events()) * repeats_ == events_, "the heap had {} events of {}",
                        ring.events(), events_ / repeats_);
            }
        }));
        for (const bool sharing : {false, true}) {
            const auto before = most_allocated = allocated;
            Picoseconds end = 0;
            simulate_[sharing].push_back(processor_seconds([&] {
                for (int i = 0; i < repeats_; ++i) end = simulate(ring_, machine_, options(sharing)).makespan;
            }));
            bytes_[sharing] = static_cast<double>(most_allocated - before) / ring_.ranks();
            // The same ring, but for what hosts take to issue operations.
            require(sharing || std::abs(double(end) / double(heap_end_) - 1) < 0.1,
                    "{} ranks: the simulator ends at {} ps and the heap at {}", ring_.ranks(), end, heap_end_);
        }
    }

    void write(experiments::RunWriter& run) const {
        run.attribute("ranks", ring_.ranks());
        run.attribute("steps", steps_);
        run.attribute("repeats", repeats_, "1", "of the ring in one sample");
        run.attribute("events", events_, "1", "ends of attends and hops in one sample");
        for (const bool sharing : {false, true}) {
            const auto* name = sharing ? "sharing" : "alone";
            run.attribute(fmt::format("bytes_per_rank_{}", name), bytes_[sharing], "B",
                          "most that simulate() had allocated");
            run.attribute(fmt::format("ratio_{}", name), ratio(sharing), "1",
                          "median over rounds of events per second over the heap's");
            run.dataset(fmt::format("seconds/simulate_{}", name), simulate_[sharing], {"round"}, "s",
                        "processor time of a sample");
        }
        run.dataset("seconds/heap", heap_, {"round"}, "s", "processor time of a sample");
    }

    void print() const {
        const auto rate = [&](const std::vector<double>& seconds) { return events_ / median(seconds) / 1e6; };
        fmt::print("{:5} ranks x {:4}: heap {:5.1f} M events/s", ring_.ranks(), steps_, rate(heap_));
        for (const bool sharing : {false, true})
            fmt::print("; {} {:5.2f} M/s, {:.2f} of the heap, {:.3f} s a ring, {:.0f} B a rank",
                       sharing ? "sharing" : "alone", rate(simulate_[sharing]), ratio(sharing),
                       median(simulate_[sharing]) / repeats_, bytes_[sharing]);
        fmt::print("\n");
        std::cout.flush();
    }

private:
    static SimOptions options(bool sharing) {
        auto options = test::rate_options();
        options.sharing = sharing;
        return options;
    }

    static double median(std::vector<double> values) {
        std::sort(values.begin(), values.end());
        return values[values.size() / 2];
    }

    /// Of neighbours in time.
    double ratio(bool sharing) const {
        std::vector<double> ratios;
        for (std::size_t i = 0; i < heap_.size(); ++i) ratios.push_back(heap_[i] / simulate_[sharing][i]);
        return median(ratios);
    }

    const Machine& machine_;
    std::unique_ptr<layouts::Schedule> whole_;
    test::ShortRing ring_;
    int steps_, repeats_ = 1;
    double events_ = 0;
    Picoseconds first_ = 0, attend_ = 0, heap_end_ = 0;
    std::vector<Picoseconds> hops_;
    std::vector<double> heap_, simulate_[2];
    double bytes_[2] = {};
};

void run_all(int argc, char** argv) {
    const auto file = std::filesystem::path(RINGLAB_SOURCE_DIR) / "experiments" / "machines" / "h200_cluster.toml";
    const auto machine = load_machine(file);
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
    if (all_ranks.empty()) all_ranks = {8, 64, 1024, 16384};
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
