#include "process.hpp"

#include "experiments/record/hdf5.hpp"

#include <boost/test/unit_test.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

namespace ringlab::cli::test {
namespace {

const std::string captured_out = ".captured-out", captured_err = ".captured-err";

[[noreturn]] void become(const Folder& folder, const std::string& program, const Words& arguments) {
    setpgid(0, 0);
    if (chdir(folder.path().c_str()) != 0) _exit(126);
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    const auto redirect = [](const std::string& file, int descriptor) {
        const int opened = open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
        if (opened < 0 || dup2(opened, descriptor) < 0) _exit(126);
    };
    redirect(captured_out, STDOUT_FILENO);
    redirect(captured_err, STDERR_FILENO);
    std::vector<char*> words{const_cast<char*>(program.c_str())};
    for (const auto& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    execvp(program.c_str(), words.data());
    _exit(127);
}

}  // namespace

Folder::Folder() {
    std::string name = (fs::temp_directory_path() / "ringlab-cli-XXXXXX").string();
    BOOST_REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
}

Folder::~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

Words Folder::left() const {
    Words names;
    for (const auto& entry : fs::directory_iterator(path_))
        if (const auto name = entry.path().filename().string(); name != captured_out && name != captured_err)
            names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
}

Ending run(const Folder& folder, const std::string& program, const Words& arguments, double timeout_seconds) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    const pid_t child = fork();
    BOOST_REQUIRE(child >= 0);
    if (child == 0) become(folder, program, arguments);
    Ending ending;
    int status = 0;
    rusage used{};
    while (wait4(child, &status, WNOHANG, &used) == 0) {
        if (!ending.timed_out && elapsed() > timeout_seconds) {
            ending.timed_out = true;
            kill(-child, SIGKILL);
            kill(child, SIGKILL);  // in case it was not yet the leader of its group
        }
        usleep(1000);
    }
    ending.seconds = elapsed();
    for (const auto& time : {used.ru_utime, used.ru_stime})
        ending.processor_seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    ending.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    ending.out = contents_of(folder / captured_out);
    ending.err = contents_of(folder / captured_err);
    return ending;
}

Ending interrupted(const Folder& folder, const std::string& program, const Words& arguments, int signal,
                   const std::string& environment) {
    std::string command = "'" + program + "'";
    for (const auto& argument : arguments) command += " '" + argument + "'";
    // A shell that is not interactive lets a background job ignore SIGINT; env gives it back.
    return run(folder, "sh",
               {"-c", "env --default-signal=INT " + environment + " " + command +
                          " & pid=$!; while [ ! -e r.h5 ]; do sleep 0.05; done; sleep 1; kill -" +
                          std::to_string(signal) + " $pid; wait $pid"},
               60);
}

Words lines_beside_progress(const std::string& text) {
    Words lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);)
        if (!line.starts_with("[")) lines.push_back(line);
    return lines;
}

void write_file(const fs::path& path, const std::string& contents) {
    std::ofstream(path, std::ios::binary).write(contents.data(), static_cast<std::streamsize>(contents.size()));
}

std::string contents_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

Words words_of(const std::string& line) {
    std::istringstream stream(line);
    return {std::istream_iterator<std::string>(stream), {}};
}

Words operator+(Words a, const Words& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

std::map<std::string, std::vector<double>> runs_of(const fs::path& record, const std::string& dataset) {
    std::map<std::string, std::vector<double>> values;
    const auto file = experiments::hdf5::File::open(record);
    const auto names = file.dataset("run").texts();
    if (names.empty()) return values;
    const auto all = file.dataset(dataset).doubles();  // runs of equal size
    const auto each = static_cast<std::ptrdiff_t>(all.size() / names.size());
    for (auto run = all.begin(); const auto& name : names) {
        values[name].assign(run, run + each);
        run += each;
    }
    return values;
}

}  // namespace ringlab::cli::test
