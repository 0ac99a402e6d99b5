#pragma once

#include "experiments/record/hdf5.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace ringlab::experiments {

/// Where results come from, as named values in the order in which they were learnt; a record keeps one for each
/// invocation that added runs to it.
class Provenance {
public:
    using Entry = std::pair<std::string, hdf5::Attribute>;

    /// Replaces what `name` had. Backends add what they know: ("devices", names), ("driver", version).
    void set(const std::string& name, hdf5::Attribute value);

    /// Adds NAME, the path as given, and NAME_sha256, the digest of the file's contents. Throws Error if the file
    /// cannot be read.
    void set_file(const std::string& name, const std::filesystem::path& path);

    const std::vector<Entry>& entries() const { return entries_; }

private:
    std::vector<Entry> entries_;
};

/// What can be known of every run: command_line, date (UTC, ISO 8601), commit (git, with "+dirty" if tracked files
/// differ, or "unknown"), compiler, compiler_flags, build_type, versions of the libraries, cpu, cpu_count (those this
/// process may use), memory_bytes, os, kernel, and variables of the environment that steer threads.
Provenance collect_provenance(int argc, const char* const* argv);

/// Name of this computer's processors, as the system gives it; "unknown" if it gives none.
std::string processor_name();

/// Number of processors that this process may use.
std::int64_t usable_processors();

/// "0.1.0 (commit 0123456789ab, GNU 12.2.0, Release)".
std::string version_text();

}  // namespace ringlab::experiments
