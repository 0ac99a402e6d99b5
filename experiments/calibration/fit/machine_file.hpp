#pragma once

#include "experiments/outputs/file_guard.hpp"

#include <filesystem>
#include <string>

namespace ringlab::experiments {

/// Writes a calibrated machine file. Returns its path, see FileGuard::write(). If no prediction could be made with the
/// file, it writes nothing and throws Error. This happens on a computer that is busy with other work, where some
/// operations can seem to take no time.
std::filesystem::path write_machine_file(const FileGuard& files, const std::filesystem::path& output,
                                         const std::string& text);

/// The source of a number that `measurements` do not determine. A time is then 0, and a rate unlimited.
std::string not_determined_by(const std::string& measurements);

/// Prints where a machine file was written, and which of its numbers the measurements do not determine.
void announce_machine_file(const std::filesystem::path& output, const std::string& text);

}  // namespace ringlab::experiments
