#pragma once

#include <filesystem>
#include <string>

namespace ringlab::experiments {

/// Writes a machine file that was calibrated. Throws Error, and writes nothing, if no prediction could be made with it:
/// a computer that is busy with other work can seem to do things in no time.
void write_machine_file(const std::filesystem::path& output, const std::string& text);

}  // namespace ringlab::experiments
