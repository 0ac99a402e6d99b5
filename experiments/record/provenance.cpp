#include "experiments/record/provenance.hpp"

#include "experiments/files/digest.hpp"
#include "experiments/files/files_read.hpp"
#include "provenance_build.hpp"
#include "provenance_commit.hpp"

#if __has_include(<xtensor/core/xtensor_config.hpp>)
#include <xtensor/core/xtensor_config.hpp>
#else
#include <xtensor/xtensor_config.hpp>
#endif
#include <fmt/chrono.h>
#include <hdf5.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <boost/version.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>

extern "C" const char* openblas_get_config();

namespace ringlab::experiments {
namespace {

/// The value of the first line "KEY SEPARATOR VALUE" of a text file of the system, quotes removed; "unknown" if there
/// is none.
std::string system_value(const char* file, const std::string& key, char separator) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
        const auto at = line.find(separator);
        if (line.compare(0, key.size(), key) != 0 || at == std::string::npos) continue;
        auto value = line.substr(at + 1);
        std::erase(value, '"');
        value.erase(0, value.find_first_not_of(" \t"));
        return value;
    }
    return "unknown";
}

/// Quoted where a shell would need it, so that the line can be pasted.
std::string quoted(const std::string& argument) {
    const bool plain = !argument.empty() && std::all_of(argument.begin(), argument.end(), [](unsigned char c) {
        return std::isalnum(c) || std::string_view("_-+=:,./@%").find(static_cast<char>(c)) != std::string_view::npos;
    });
    if (plain) return argument;
    std::string text = "'";
    for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
}

std::string hdf5_version() {
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    return fmt::format("{}.{}.{}", major, minor, release);
}

}  // namespace

std::string processor_name() { return system_value("/proc/cpuinfo", "model name", ':'); }

std::int64_t usable_processors() {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
    return sysconf(_SC_NPROCESSORS_ONLN);
}

void Provenance::set(const std::string& name, hdf5::Attribute value) {
    const auto found =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.first == name; });
    if (found == entries_.end())
        entries_.emplace_back(name, std::move(value));
    else
        found->second = std::move(value);
}

void Provenance::set_file(const std::string& name, const std::filesystem::path& path) {
    auto* account = FilesRead::current();
    auto digest = account ? account->digest(path) : digest_of_file(path);
    set(name, path.string());
    set(name + "_sha256", std::move(digest));
}

std::string version_text() {
    return fmt::format("{} (commit {}, {}, {})", RINGLAB_VERSION, RINGLAB_COMMIT, RINGLAB_COMPILER, RINGLAB_BUILD_TYPE);
}

Provenance collect_provenance(int argc, const char* const* argv) {
    Provenance provenance;
    std::string command;
    for (int i = 0; i < argc; ++i) command += (i > 0 ? " " : "") + quoted(argv[i]);
    provenance.set("command_line", command);
    provenance.set("date", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))));
    provenance.set("ringlab_version", RINGLAB_VERSION);
    provenance.set("commit", RINGLAB_COMMIT);
    provenance.set("compiler", RINGLAB_COMPILER);
    provenance.set("compiler_flags", RINGLAB_COMPILER_FLAGS);
    provenance.set("build_type", RINGLAB_BUILD_TYPE);
    provenance.set("boost",
                   fmt::format("{}.{}.{}", BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000, BOOST_VERSION % 100));
    provenance.set("hdf5", hdf5_version());
    provenance.set("xtensor",
                   fmt::format("{}.{}.{}", XTENSOR_VERSION_MAJOR, XTENSOR_VERSION_MINOR, XTENSOR_VERSION_PATCH));
    provenance.set("openblas", openblas_get_config());
    provenance.set("mpi", RINGLAB_MPI_LIBRARY);
    provenance.set("cpu", processor_name());
    provenance.set("cpu_count", usable_processors());
    provenance.set("memory_bytes", static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
    provenance.set("os", system_value("/etc/os-release", "PRETTY_NAME", '='));
    utsname system{};
    if (uname(&system) == 0)
        provenance.set("kernel", fmt::format("{} {} {}", system.sysname, system.release, system.machine));
    for (const char* variable : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE"})
        if (const char* value = std::getenv(variable)) provenance.set(variable, std::string(value));
    return provenance;
}

}  // namespace ringlab::experiments
