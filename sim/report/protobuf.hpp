#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ringlab::sim {

/// A message in the wire format of Protocol Buffers. Fields stand in it in the order in which they are added.
class ProtobufMessage {
public:
    /// A field of type uint32, uint64, bool or enum; int32 and int64 likewise if the value is not negative.
    ProtobufMessage& number(int field, std::uint64_t value) {
        tag(field, WireType::varint);
        varint(value);
        return *this;
    }

    /// A field of type string or bytes.
    ProtobufMessage& text(int field, std::string_view value) {
        tag(field, WireType::length_delimited);
        varint(value.size());
        bytes_ += value;
        return *this;
    }

    /// A field that is itself a message.
    ProtobufMessage& message(int field, const ProtobufMessage& value) { return text(field, value.bytes_); }

    /// A repeated field of numbers, packed.
    ProtobufMessage& numbers(int field, const std::vector<std::uint64_t>& values) {
        if (values.empty()) return *this;
        ProtobufMessage packed;
        for (const auto value : values) packed.varint(value);
        return message(field, packed);
    }

    /// The message behind its length, as it stands in a stream of messages.
    std::string delimited() const {
        ProtobufMessage length;
        length.varint(bytes_.size());
        return length.bytes_ + bytes_;
    }

private:
    enum class WireType : std::uint64_t { varint = 0, length_delimited = 2 };

    void tag(int field, WireType type) {
        varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type));
    }

    /// Seven bits a byte, the lowest first; the highest bit says that more follow.
    void varint(std::uint64_t value) {
        for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
        bytes_ += static_cast<char>(value);
    }

    std::string bytes_;
};

}  // namespace ringlab::sim
