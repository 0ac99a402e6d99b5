// Speed of simulate() on rings of 8 to 16384 ranks. Run: benchmark_ring [RECORD.h5 [RANKS...]], on one core; minutes.
// Compare two versions on one machine, in turns, since machines differ twofold and a busy one more.
//
// An event is the end of an attend or of a hop. The whole of simulate() is timed, the schedule's making is not. Times
// are processor times of the thread. Beyond 1024 ranks a ring is cut off after 1024 steps.
//
// Ranks of this ring cannot differ from host to host, so that simulate() plays one host of eight, or one rank of a ring
// in one host, and its events stand for those of all ranks. Beside it stands a play of all ranks, as of rings that
// cannot be folded but whose ranks are alike: one stream of operations serves them all.
//
// A play of all ranks is work spread over some forty functions, none of which takes a fifth: reading and pricing three
// operations of a rank's step, starting and ending them, the queue, and with sharing linking, solving and moving what
// became slower. At 16384 ranks memory is waited for: huge pages make it 5 % faster, prefetching what comes next 2 to
// 4 %. Of a fold of 8 ranks onto one, set-up is a fifth.
#include "experiments/record/record.hpp"
#include "scenario.hpp"
#include "sim/play/fold.hpp"

#include <array>
#include <ctime>
#include <functional>
#include <iostream>

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
        for (auto& way : ways_) {
            const auto options = options_of(way);
            way.played = ranks_played(ring_, machine_, options);
            way.timed.repeats = repeats(events_ * way.played / ranks);
        }
    }

    void round() {
        for (auto& way : ways_) {
            const auto options = options_of(way);
            way.timed.sample([&] { simulate(ring_, machine_, options); });
        }
    }

    void write(experiments::RunWriter& run) const {
        run.attribute("ranks", ring_.ranks());
        run.attribute("steps", steps_);
        run.attribute("events", events_, "1",
                      "ends of attends and hops of all ranks, also of those folded onto others");
        for (const auto& way : ways_) {
            run.attribute(fmt::format("ranks_played_{}", way.name), way.played);
            run.attribute(fmt::format("repeats_{}", way.name), way.timed.repeats, "1", "of the ring in one sample");
            run.dataset(fmt::format("seconds/simulate_{}", way.name), way.timed.seconds, {"round"}, "s",
                        "processor time of a ring");
        }
    }

    void print() const {
        fmt::print("{} ranks x {}\n", ring_.ranks(), steps_);
        for (const auto& way : ways_) {
            const auto seconds = median(way.timed.seconds);
            fmt::print("  {:17} {:5} played, {:8.2f} M events/s, {:8.3g} s a ring\n", way.name, way.played,
                       events_ / seconds / 1e6, seconds);
        }
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

    const Machine& machine_;
    std::unique_ptr<layouts::Schedule> whole_;
    ShortRing ring_;
    int steps_;
    double events_;
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
        record.emplace(std::filesystem::path(argv[1]), experiments::RecordMode::overwrite,
                       experiments::RecordHeader{"benchmark_ring", "How fast the simulator plays a ring",
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
