#pragma once

#include "experiments/outputs/file_guard.hpp"

#include <filesystem>
#include <string>

namespace ringlab::experiments {

/// Writes a machine file that was calibrated. Throws Error, and writes nothing, if no prediction could be made with it:
/// a computer that is busy with other work can seem to do things in no time. Returns where it is, see
/// FileGuard::write().
std::filesystem::path write_machine_file(const FileGuard& files, const std::filesystem::path& output,
                                         const std::string& text);

/// The source of a figure that `measurements` do not determine: a time that is 0 then, or a rate without end.
std::string not_determined_by(const std::string& measurements);

/// Tells the user of a machine file that was written, and which of its figures nothing determines.
void announce_machine_file(const std::filesystem::path& output, const std::string& text);

}  // namespace ringlab::experiments
