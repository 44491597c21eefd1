// XXH64 of Yann Collet's xxHash with seed 0: fast, for finding damage and stale copies; it is no signature.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace iosched {

struct Checksum {
  static uint64_t of(const void* data, size_t nbytes) {
    const auto* at = static_cast<const unsigned char*>(data);
    const unsigned char* const end = at + nbytes;
    uint64_t hash = k5;
    if (nbytes >= 32) {
      uint64_t lanes[4] = {k1 + k2, k2, 0, 0 - k1};
      for (; end - at >= 32; at += 32) {
        for (int i = 0; i < 4; ++i) lanes[i] = round(lanes[i], word<uint64_t>(at + 8 * i));
      }
      hash = rotated(lanes[0], 1) + rotated(lanes[1], 7) + rotated(lanes[2], 12) + rotated(lanes[3], 18);
      for (const uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * k1 + k4;
    }
    hash += nbytes;
    for (; end - at >= 8; at += 8) hash = rotated(hash ^ round(0, word<uint64_t>(at)), 27) * k1 + k4;
    if (end - at >= 4) {
      hash = rotated(hash ^ (word<uint32_t>(at) * k1), 23) * k2 + k3;
      at += 4;
    }
    for (; at < end; ++at) hash = rotated(hash ^ (*at * k5), 11) * k1;
    hash = (hash ^ (hash >> 33)) * k2;
    hash = (hash ^ (hash >> 29)) * k3;
    return hash ^ (hash >> 32);
  }

 private:
  static constexpr uint64_t k1 = 0x9E3779B185EBCA87, k2 = 0xC2B2AE3D27D4EB4F, k3 = 0x165667B19E3779F9,
                            k4 = 0x85EBCA77C2B2AE63, k5 = 0x27D4EB2F165667C5;

  static uint64_t rotated(uint64_t value, int bits) { return (value << bits) | (value >> (64 - bits)); }
  static uint64_t round(uint64_t lane, uint64_t input) { return rotated(lane + input * k2, 31) * k1; }

  template <typename Word>
  static uint64_t word(const unsigned char* data) {  // both supported processors are little-endian
    Word value;
    std::memcpy(&value, data, sizeof value);
    return value;
  }
};

}  // namespace iosched
