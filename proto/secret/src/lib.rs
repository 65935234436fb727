//! Secrets of a box: cryptographic randomness from a seed, and authentication tags.
//!
//! On real ports a [`Seed`] comes from the operating system at each start. In virtual time it
//! derives from the scenario's seed, so that a run is repeatable. Transmitted values never reveal
//! the seed or other values drawn from it.
#![forbid(unsafe_code)]

use chacha20::ChaCha20Rng;
use chacha20::rand_core::{Rng as _, SeedableRng};
use longhaul_units::Rng;
use ring::hmac;
use std::fmt;
use zeroize::Zeroizing;

/// Length of a seed, in bytes.
pub const SEED_LEN: usize = 32;

/// 32 secret bytes from which a node draws all its randomness. Zeroed when dropped, and never
/// printed.
///
/// A box must use a new seed at each start: the same seed would produce the same names, cookies and
/// keys.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed(Zeroizing<[u8; SEED_LEN]>);

impl Seed {
    /// Wraps bytes from the operating system.
    pub fn new(bytes: [u8; SEED_LEN]) -> Self {
        Seed(Zeroizing::new(bytes))
    }

    /// A seed for virtual time and tests. Not secret: it can be found by exhaustive search.
    pub fn of_scenario(seed: u64) -> Self {
        let mut bytes = [0; SEED_LEN];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Seed::new(bytes)
    }
}

/// The seed of scenario 0.
impl Default for Seed {
    fn default() -> Self {
        Seed::of_scenario(0)
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seed(secret)")
    }
}

/// A cryptographic generator (ChaCha20, RFC 8439): part of its output reveals nothing about the
/// rest.
pub struct SecretRng(ChaCha20Rng);

impl SecretRng {
    /// The same seed gives the same output.
    pub fn new(seed: &Seed) -> Self {
        SecretRng(ChaCha20Rng::from_seed(*seed.0))
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        self.0.fill_bytes(out);
    }

    /// Draws a seed for another generator.
    pub fn draw_seed(&mut self) -> Seed {
        let mut bytes = [0; SEED_LEN];
        self.fill(&mut bytes);
        Seed::new(bytes)
    }
}

impl Rng for SecretRng {
    fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
}

impl fmt::Debug for SecretRng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretRng")
    }
}

/// Key for authentication tags (HMAC-SHA256 truncated to 16 bytes), used for cookies.
pub struct TagKey(hmac::Key);

impl TagKey {
    /// Draws a new key.
    pub fn draw(rng: &mut SecretRng) -> Self {
        let mut key = Zeroizing::new([0; SEED_LEN]);
        rng.fill(&mut *key);
        TagKey(hmac::Key::new(hmac::HMAC_SHA256, &*key))
    }

    /// Derives the key from a shared secret.
    pub fn of(secret: &[u8]) -> Self {
        TagKey(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Returns the tag of the concatenated `parts`. Each part must have a fixed length; otherwise
    /// two lists could have the same tag.
    pub fn tag(&self, parts: &[&[u8]]) -> [u8; 16] {
        let mut mac = hmac::Context::with_key(&self.0);
        parts.iter().for_each(|part| mac.update(part));
        mac.sign().as_ref().first_chunk().copied().unwrap_or_default()
    }
}

impl fmt::Debug for TagKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TagKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_a_run_and_another_has_nothing_in_common_with_it() {
        let draw = |seed: u64| {
            let mut rng = SecretRng::new(&Seed::of_scenario(seed));
            [rng.next_u64(), rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(draw(7), draw(7));
        let (one, other) = (draw(7), draw(8));
        assert!(one.iter().all(|value| !other.contains(value)));
    }

    #[test]
    fn a_tag_depends_on_its_key_and_on_every_part() {
        let key = |seed| TagKey::draw(&mut SecretRng::new(&Seed::of_scenario(seed)));
        let tag = key(1).tag(&[b"ab", b"cd"]);
        assert_eq!(tag, key(1).tag(&[b"abcd"]));
        assert_ne!(tag, key(2).tag(&[b"ab", b"cd"]));
        assert_ne!(tag, key(1).tag(&[b"ab", b"ce"]));
    }

    #[test]
    fn nothing_secret_is_shown() {
        let seed = Seed::new([0x41; SEED_LEN]);
        let mut rng = SecretRng::new(&seed);
        let shown = format!("{seed:?} {rng:?} {:?}", TagKey::draw(&mut rng));
        assert_eq!(shown, "Seed(secret) SecretRng TagKey(secret)");
    }
}
