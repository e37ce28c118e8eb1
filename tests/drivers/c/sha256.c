/* SHA-256 (FIPS 180-4). The driver does not offer it, and one digest does not justify another
 * library. */
#include "common.h"

#include <stdio.h>

static const uint32_t K[64] = {
   0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
   0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
   0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
   0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
   0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
   0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
   0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
   0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t
rotated (uint32_t word, int bits)
{
   return word >> bits | word << (32 - bits);
}

static void
block (uint32_t state[8], const uint8_t *bytes)
{
   uint32_t w[64], s[8];
   for (int i = 0; i < 16; i++, bytes += 4) {
      w[i] = (uint32_t) bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3];
   }
   for (int i = 16; i < 64; i++) {
      uint32_t s0 = rotated (w[i - 15], 7) ^ rotated (w[i - 15], 18) ^ w[i - 15] >> 3;
      uint32_t s1 = rotated (w[i - 2], 17) ^ rotated (w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
   }
   memcpy (s, state, sizeof s);
   for (int i = 0; i < 64; i++) {
      uint32_t s1 = rotated (s[4], 6) ^ rotated (s[4], 11) ^ rotated (s[4], 25);
      uint32_t t1 = s[7] + s1 + ((s[4] & s[5]) ^ (~s[4] & s[6])) + K[i] + w[i];
      uint32_t s0 = rotated (s[0], 2) ^ rotated (s[0], 13) ^ rotated (s[0], 22);
      uint32_t t2 = s0 + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      memmove (s + 1, s, 7 * sizeof *s);
      s[4] += t1;
      s[0] = t1 + t2;
   }
   for (int i = 0; i < 8; i++) {
      state[i] += s[i];
   }
}

void
sha256_hex (const uint8_t *bytes, size_t length, char hex[65])
{
   uint32_t state[8] = {
      0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
   };
   size_t whole = length / 64 * 64, rest = length - whole;
   for (size_t i = 0; i < whole; i += 64) {
      block (state, bytes + i);
   }
   /* The remaining bytes, a one bit, zeros, and the length in bits fill one or two blocks. */
   uint8_t last[128] = {0};
   size_t end = rest < 56 ? 64 : 128;
   memcpy (last, bytes + whole, rest);
   last[rest] = 0x80;
   for (int i = 0; i < 8; i++) {
      last[end - 1 - i] = (uint8_t) ((uint64_t) length * 8 >> 8 * i);
   }
   for (size_t i = 0; i < end; i += 64) {
      block (state, last + i);
   }
   for (int i = 0; i < 8; i++) {
      snprintf (hex + 8 * i, 9, "%08x", state[i]);
   }
}
