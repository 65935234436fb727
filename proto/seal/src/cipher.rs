//! The ciphers and their negotiation.

use crate::format::TAG_LEN;
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, Tag, UnboundKey};
use std::fmt;
use zeroize::Zeroize;

/// AEAD for datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Cipher {
    /// AES-256 in Galois/Counter mode; fastest on processors with AES instructions.
    Aes256Gcm = 1,
    /// ChaCha20 with Poly1305 (RFC 8439); fastest on other processors, where it needs no lookup
    /// tables.
    ChaCha20Poly1305 = 2,
}

impl Cipher {
    /// Name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Cipher::Aes256Gcm => "aes-256-gcm",
            Cipher::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// Both ciphers, in the order that suits this processor; for real ports. In virtual time the
    /// order is the configuration's, so that a run is the same everywhere.
    pub fn for_this_processor() -> Vec<Cipher> {
        #[cfg(target_arch = "x86_64")]
        let has_aes = std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let has_aes = std::arch::is_aarch64_feature_detected!("aes");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let has_aes = false;
        let mut ciphers = vec![Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];
        if !has_aes {
            ciphers.reverse();
        }
        ciphers
    }

    fn of(code: u8) -> Option<Cipher> {
        [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305]
            .into_iter()
            .find(|cipher| *cipher as u8 == code)
    }
}

/// Ciphers that a box accepts, best first, as encoded in a handshake: two bytes, 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Preference(pub(crate) [u8; 2]);

impl Preference {
    pub(crate) fn of(ciphers: &[Cipher]) -> Self {
        let mut codes = [0; 2];
        for (code, cipher) in codes.iter_mut().zip(ciphers) {
            *code = *cipher as u8;
        }
        Preference(codes)
    }

    /// The cipher that both accept. If each prefers another, ChaCha20: one of the processors lacks
    /// AES instructions, and AES slows it down more than ChaCha20 slows down the other.
    pub(crate) fn agree(self, other: Preference) -> Option<Cipher> {
        let takes = |preference: Preference, cipher: Cipher| preference.0.contains(&(cipher as u8));
        let both = |cipher: &Cipher| takes(self, *cipher) && takes(other, *cipher);
        match Cipher::of(self.0[0]).filter(both) {
            Some(first) if self.0[0] == other.0[0] => Some(first),
            _ => [Cipher::ChaCha20Poly1305, Cipher::Aes256Gcm].into_iter().find(both),
        }
    }
}

/// One key in one direction.
pub(crate) struct Aead(LessSafeKey);

impl Aead {
    /// Copies the key and overwrites `key`.
    pub(crate) fn new(cipher: Cipher, key: &mut [u8; 32]) -> Option<Self> {
        let algorithm = match cipher {
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        let unbound = UnboundKey::new(algorithm, key).ok();
        key.zeroize();
        unbound.map(|key| Aead(LessSafeKey::new(key)))
    }

    /// Encrypts `bytes` in place and writes the tag. Returns `false` if `bytes` exceeds the
    /// cipher's limit (64 GiB).
    #[inline]
    pub(crate) fn seal(
        &self,
        nonce: [u8; 12],
        clear: &[u8],
        bytes: &mut [u8],
        tag: &mut [u8],
    ) -> bool {
        let nonce = Nonce::assume_unique_for_key(nonce);
        match self.0.seal_in_place_separate_tag(nonce, Aad::from(clear), bytes) {
            Ok(sealed) => {
                tag.copy_from_slice(sealed.as_ref());
                true
            }
            Err(_) => false,
        }
    }

    /// Decrypts `bytes` in place. Returns `false`, with `bytes` undefined, if `bytes`, `clear` or
    /// the nonce differs from what was sealed.
    #[inline]
    pub(crate) fn open(
        &self,
        nonce: [u8; 12],
        clear: &[u8],
        bytes: &mut [u8],
        tag: [u8; TAG_LEN],
    ) -> bool {
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.0
            .open_in_place_separate_tag(nonce, Aad::from(clear), Tag::from(tag), bytes, 0..)
            .is_ok()
    }
}

impl fmt::Debug for Aead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Aead(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Cipher::{Aes256Gcm as A, ChaCha20Poly1305 as C};

    #[test]
    fn both_get_what_both_take() {
        let agree = |one: &[Cipher], other: &[Cipher]| {
            let (one, other) = (Preference::of(one), Preference::of(other));
            assert_eq!(one.agree(other), other.agree(one), "whichever begins");
            one.agree(other)
        };
        assert_eq!(agree(&[A, C], &[A, C]), Some(A));
        assert_eq!(agree(&[A, C], &[C, A]), Some(C));
        assert_eq!(agree(&[C, A], &[C, A]), Some(C));
        assert_eq!(agree(&[A, C], &[A]), Some(A));
        assert_eq!(agree(&[C, A], &[A]), Some(A));
        assert_eq!(agree(&[A], &[C]), None);
        assert_eq!(Preference::of(&[A]).agree(Preference([7, 0])), None);
        assert_eq!(Preference::of(&[A]).agree(Preference([0, 0])), None);
    }

    #[test]
    fn any_wrong_bit_is_refused() {
        for cipher in [A, C] {
            let aead = Aead::new(cipher, &mut [9; 32]).unwrap();
            let (mut bytes, mut tag) = ([7; 40], [0; TAG_LEN]);
            assert!(aead.seal([1; 12], b"clear", &mut bytes, &mut tag));
            assert_ne!(bytes, [7; 40]);
            for bit in 0..40 * 8 {
                let mut wrong = bytes;
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(!aead.open([1; 12], b"clear", &mut wrong, tag));
            }
            assert!(!aead.open([2; 12], b"clear", &mut bytes.clone(), tag));
            assert!(!aead.open([1; 12], b"clean", &mut bytes.clone(), tag));
            assert!(aead.open([1; 12], b"clear", &mut bytes, tag));
            assert_eq!(bytes, [7; 40]);
        }
    }
}
