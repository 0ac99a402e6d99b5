#pragma once

#include "experiments/record/record.hpp"
#include "layouts/basics/require.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace ringlab::layouts {

inline std::ostream& boost_test_print_type(std::ostream& out, DType dtype) { return out << to_string(dtype); }

}  // namespace ringlab::layouts

namespace ringlab::experiments::test {

namespace fs = std::filesystem;

/// A folder that goes with everything in it.
class Folder {
public:
    Folder() {
        std::string name = (fs::temp_directory_path() / "ringlab-XXXXXX").string();
        BOOST_REQUIRE(mkdtemp(name.data()) != nullptr);
        path_ = name;
    }
    ~Folder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    fs::path operator/(const std::string& name) const { return path_ / name; }
    const fs::path& path() const { return path_; }

private:
    fs::path path_;
};

/// The text of the Error that `call` must throw.
template <class Call>
std::string error_of(Call call) {
    try {
        call();
    } catch (const Error& error) {
        return error.what();
    }
    BOOST_ERROR("no error was thrown");
    return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline bool one_line(const std::string& text) { return !text.empty() && text.find('\n') == std::string::npos; }

inline std::string bytes_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

inline void put_bytes(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Writes an HDF5 file that was made in memory.
inline void save(const hdf5::File& file, const fs::path& path) {
    const auto bytes = file.image();
    put_bytes(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

/// Runs `body` in a child process, outside this one's test log and signal handlers; its exit status, or -signal.
template <class Body>
int in_child(Body body) {
    const pid_t child = fork();
    BOOST_REQUIRE(child >= 0);
    if (child == 0) {
        for (const int fatal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(fatal, SIG_DFL);
        _exit(body());
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

inline RecordHeader header(const std::string& configuration = "tokens = 4096\nranks = 8\n") {
    return {"record_test", "A record made by a test", configuration};
}

/// What a test says of where its runs come from: nothing that differs between two invocations.
inline Provenance fixed_provenance() {
    Provenance provenance;
    provenance.set("date", "2024-01-01T00:00:00Z");
    // As many facts as programs have: HDF5 stores more than eight in another way.
    for (int fact = 0; fact < 12; ++fact) provenance.set(fmt::format("fact_{}", fact), std::string("known"));
    return provenance;
}

inline layouts::Timeline small_timeline(int ranks, int steps) {
    layouts::Timeline timeline{ranks, {}};
    for (int rank = 0; rank < ranks; ++rank)
        for (int step = 0; step < steps; ++step) {
            layouts::Span span;
            span.rank = rank;
            span.op = step;
            span.step = step;
            span.kind = step % 2 == 0 ? layouts::OpKind::attend : layouts::OpKind::send;
            span.lane = step % 2 == 0 ? layouts::compute_lane : 1;
            span.peer = step % 2 == 0 ? -1 : (rank + 1) % ranks;
            span.block = (rank - step / 2 + ranks * steps) % ranks;
            span.posted = span.begin = 1'000'000'000LL * step + 7 * rank;
            span.end = span.begin + 999'999'999;
            span.busy = 123'456'789;
            span.pair_count = 1000 * step;
            span.bytes = 1'000'000LL * step;
            timeline.spans.push_back(span);
        }
    return timeline;
}

inline hdf5::File open(const fs::path& path) { return hdf5::File::open(path); }

inline std::vector<std::string> runs_of(const hdf5::File& file) { return file.dataset("run").texts(); }

/// Everything a run can hold; different for each number.
inline RunWriter sample_run(int number, int ranks = 8, int repeats = 3, int steps = 30) {
    RunWriter run;
    run.attribute("layout", "zigzag");
    run.attribute("ranks", ranks);
    run.attribute("tolerance", 1e-13, "1", "what passes");
    run.attribute("devices", std::vector<std::string>{"one", "two"});
    run.dimension("policy", std::vector<std::string>{"carry", "partials"}, "1", "accumulation policy");
    std::vector<double> times;
    for (int i = 0; i < ranks * repeats; ++i) times.push_back(number + i * 1e-3);
    run.dataset("measured/cpu_time", times, {{"repeat", repeats}, {"rank", ranks}}, "s", "CPU time of each rank");
    run.dataset("measured/pairs", std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 1LL << 40), {"rank"}, "1",
                "visible pairs");
    run.dataset("error/by_policy", std::vector<double>{1e-3, 2e-3}, {"policy"}, "1", "relative RMS");
    run.dataset("imbalance", std::vector<double>{1.0 + number}, {}, "1", "largest over mean");
    run.dataset("names", std::vector<std::string>{"o", "lse", "dq"}, {{"tensor", 3}}, "1", "what was compared");
    run.timeline("a machine", "forward", small_timeline(ranks, steps));
    return run;
}

}  // namespace ringlab::experiments::test
