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
#include "scenario.hpp"
#include "sim/cost/cost.hpp"
#include "sim/play/fold.hpp"

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

/// The first `steps` steps of a ring's forward pass, for runs with fewer steps than ranks. `whole` must outlive it.
class ShortRing : public layouts::Schedule {
public:
    ShortRing(const layouts::Schedule& whole, int steps)
        : Schedule(whole.problem(), whole.mask(), whole.layout(), whole.options()), whole_(whole), steps_(steps) {
        set_channels(whole.channels());
    }

    bool is_rank_symmetric() const override { return whole_.is_rank_symmetric(); }

    layouts::Ops ops(int rank) const override {
        if (steps_ >= ranks()) return whole_.ops(rank);
        return beginning(rank);
    }

private:
    layouts::Ops beginning(int rank) const {
        layouts::Op& place = co_await layouts::Ops::op_storage;
        auto ops = whole_.ops(rank).with_op_storage(place);
        while (const auto* op = ops.next()) {
            if (op->step >= steps_) co_return;
            // What goes on to a step beyond the last is not sent.
            if (op->kind == layouts::OpKind::send && op->step == steps_ - 1) continue;
            co_yield *op;
        }
    }

    const layouts::Schedule& whole_;
    int steps_;
};

/// A ring walked by a 4-ary heap of (time, number, rank and what ended), and by nothing else: no schedule is read, no
/// resource shared, nothing added up. What events cost at the least, to judge a simulator by on any machine.
///
/// An attend of a rank follows its last one and the arrival of its block. A hop follows the last hop of the rank and
/// the arrival of what it sends, and goes into one of two slots, which the receiver's attend and hop of the step before
/// must have read.
class HeapRing {
public:
    /// Durations of the first attend, of all others, and by rank of the hop to the next.
    HeapRing(layouts::Picoseconds first, layouts::Picoseconds attend, const std::vector<layouts::Picoseconds>& hops,
             int steps)
        : first_(first), attend_(attend), steps_(steps), ranks_(hops.size()) {
        for (std::size_t rank = 0; rank < hops.size(); ++rank) ranks_[rank].hop = hops[rank];
        heap_.reserve(2 * hops.size());
    }

    /// When the last attend ends.
    layouts::Picoseconds run() {
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
            try_attend(rank);
            try_hop(rank);
        }
        while (!heap_.empty()) {
            const auto event = pop();
            now_ = event.time;
            ++events_;
            const std::size_t rank = event.what / 2;
            event.what % 2 == 0 ? attended(rank) : arrived(rank);
        }
        return now_;
    }

    std::uint64_t events() const { return events_; }

private:
    struct Rank {
        layouts::Picoseconds hop = 0;
        int attended = 0, sent = 0, received = 0;
        bool attending = false, sending = false;
    };

    struct Event {
        layouts::Picoseconds time;
        std::uint32_t number, what;
        bool operator<(const Event& other) const {
            return time != other.time ? time < other.time : number < other.number;
        }
    };

    std::size_t after(std::size_t rank) const { return rank + 1 == ranks_.size() ? 0 : rank + 1; }
    std::size_t before(std::size_t rank) const { return rank == 0 ? ranks_.size() - 1 : rank - 1; }

    void try_attend(std::size_t rank) {
        auto& r = ranks_[rank];
        if (r.attending || r.attended == steps_ || r.received < r.attended) return;
        r.attending = true;
        push(now_ + (r.attended == 0 ? first_ : attend_), 2 * rank);
    }

    void try_hop(std::size_t rank) {
        auto& r = ranks_[rank];
        const auto& to = ranks_[after(rank)];
        if (r.sending || r.sent == steps_ - 1 || r.received < r.sent || to.attended < r.sent || to.sent < r.sent)
            return;
        r.sending = true;
        push(now_ + r.hop, 2 * rank + 1);
    }

    void attended(std::size_t rank) {
        auto& r = ranks_[rank];
        r.attending = false;
        ++r.attended;
        try_attend(rank);
        try_hop(before(rank));
    }

    void arrived(std::size_t rank) {
        auto& r = ranks_[rank];
        const auto to = after(rank);
        r.sending = false;
        ++r.sent;
        ++ranks_[to].received;
        try_hop(rank);
        try_hop(before(rank));
        try_hop(to);
        try_attend(to);
    }

    void push(layouts::Picoseconds time, std::size_t what) {
        const Event event{time, number_++, static_cast<std::uint32_t>(what)};
        auto at = heap_.size();
        heap_.push_back(event);
        for (; at > 0 && event < heap_[(at - 1) / 4]; at = (at - 1) / 4) heap_[at] = heap_[(at - 1) / 4];
        heap_[at] = event;
    }

    Event pop() {
        const auto top = heap_.front(), last = heap_.back();
        heap_.pop_back();
        std::size_t at = 0;
        for (auto child = std::size_t{1}; child < heap_.size(); child = 4 * at + 1) {
            const auto end = std::min(child + 4, heap_.size());
            auto least = child;
            for (++child; child < end; ++child)
                if (heap_[child] < heap_[least]) least = child;
            if (!(heap_[least] < last)) break;
            heap_[at] = heap_[least];
            at = least;
        }
        if (!heap_.empty()) heap_[at] = last;
        return top;
    }

    layouts::Picoseconds first_, attend_, now_ = 0;
    int steps_;
    std::vector<Rank> ranks_;
    std::vector<Event> heap_;
    std::uint32_t number_ = 0;
    std::uint64_t events_ = 0;
};

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
            way.played = ranks_played(ring_, machine_, options);
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
            HeapRing ring(first_, attend_, hops_, steps_);
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
    ShortRing ring_;
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
