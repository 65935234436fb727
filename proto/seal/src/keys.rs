//! Keys and their text form: base64 of 32 bytes, 44 characters, as WireGuard writes its own.
//!
//! A line in front of a secret's base64 names its kind, because both kinds look alike. It is
//! optional when reading.

use base64ct::{Base64, Encoding};
use longhaul_secret::{SecretRng, Seed};
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use zeroize::Zeroizing;

/// Length of any key in bytes.
pub const KEY_LEN: usize = 32;
/// Length of a key's base64.
pub const KEY_TEXT_LEN: usize = 44;

/// First line of a private key's text.
const PRIVATE: &str = "# Longhaul private key";
/// First line of a pre-shared key's text.
const PRESHARED: &str = "# Longhaul pre-shared key";

/// Why a text is no key. It never repeats the text, which may be a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum KeyError {
    /// Not 44 characters.
    #[error("a key has 44 characters of base64, and this text has {len}: copy the complete key")]
    Length {
        /// Bytes of the text, without blanks around it.
        len: usize,
    },
    /// Not base64 of 32 bytes.
    #[error(
        "this text of 44 characters is not base64 of 32 bytes: only A-Z, a-z, 0-9, + and / may \
         stand in it, with one = at its end; copy the key again from where it was generated"
    )]
    Encoding,
    /// All bytes are the same: a key that was never filled in.
    #[error("this key is one byte repeated, as a template leaves it: generate one")]
    Blank,
    /// A pre-shared key instead of a private key.
    #[error("a pre-shared key, not a private key")]
    Preshared,
    /// A private key instead of a pre-shared key.
    #[error("a private key, not a pre-shared key")]
    Private,
    /// A public key that any private key makes the same secret with.
    #[error(
        "this public key is a point of low order, which hides nothing: ask the far box's operator \
         for its key again"
    )]
    LowOrder,
}

/// Reads 32 bytes from base64. Blanks around it, as a line's end, are allowed.
fn read(text: &str) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyError> {
    let text = text.trim();
    if text.len() != KEY_TEXT_LEN {
        return Err(KeyError::Length { len: text.len() });
    }
    let mut key = Zeroizing::new([0; KEY_LEN]);
    match Base64::decode(text, &mut *key) {
        Ok(bytes) if bytes.len() == KEY_LEN => {}
        _ => return Err(KeyError::Encoding),
    }
    if key.iter().all(|byte| *byte == key[0]) { Err(KeyError::Blank) } else { Ok(key) }
}

/// The base64 of a secret's text. Its first line, if it names a kind, must be `own`; `other` is the
/// line of the other kind, whose error is `wrong`.
fn base64_of<'a>(
    text: &'a str,
    own: &str,
    (other, wrong): (&str, KeyError),
) -> Result<&'a str, KeyError> {
    match text.split_once('\n') {
        Some((first, base64)) if first.trim_end() == own => Ok(base64),
        Some((first, _)) if first.trim_end() == other => Err(wrong),
        _ => Ok(text),
    }
}

/// The text of a secret of the kind that the line `first` names.
fn text_of(first: &str, key: &[u8; KEY_LEN]) -> Zeroizing<String> {
    let base64 = Zeroizing::new(Base64::encode_string(key));
    // One allocation, so that no copy of the secret stays behind.
    let mut text = Zeroizing::new(String::with_capacity(first.len() + KEY_TEXT_LEN + 2));
    for part in [first, "\n", &base64, "\n"] {
        text.push_str(part);
    }
    text
}

/// 32 fresh bytes from `seed`, which is secret and used for nothing else.
fn generate(seed: &Seed) -> Zeroizing<[u8; KEY_LEN]> {
    let mut key = Zeroizing::new([0; KEY_LEN]);
    SecretRng::new(seed).fill(&mut *key);
    key
}

/// Multiplies a point of Curve25519. `None`: the outcome is zero.
fn multiply(private: &[u8; KEY_LEN], point: Option<&[u8; KEY_LEN]>) -> Option<[u8; KEY_LEN]> {
    let mut dh = DefaultResolver.resolve_dh(&DHChoice::Curve25519)?;
    dh.set(private);
    let mut out = [0; KEY_LEN];
    match point {
        Some(point) => dh.dh(point, &mut out).ok()?,
        None => out.copy_from_slice(dh.pubkey()),
    }
    (out != [0; KEY_LEN]).then_some(out)
}

/// The secret that a box proves itself with: an X25519 private key. Overwritten when dropped, and
/// never shown but by [`PrivateKey::to_text`].
#[derive(Clone)]
pub struct PrivateKey(Zeroizing<[u8; KEY_LEN]>);

impl PrivateKey {
    /// A key from `seed`: 32 bytes from the operating system, used for nothing else.
    pub fn generate(seed: &Seed) -> Self {
        PrivateKey(generate(seed))
    }

    /// What the far boxes are given.
    pub fn public(&self) -> PublicKey {
        PublicKey(multiply(&self.0, None).unwrap_or_default())
    }

    /// The text of the key file: the kind, and the base64.
    pub fn to_text(&self) -> Zeroizing<String> {
        text_of(PRIVATE, &self.0)
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl FromStr for PrivateKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        base64_of(text, PRIVATE, (PRESHARED, KeyError::Preshared)).and_then(read).map(PrivateKey)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(secret)")
    }
}

/// What a far box is known by: an X25519 public key. Not secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub(crate) [u8; KEY_LEN]);

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let key = read(text)?;
        // Any private key shows a point of low order.
        multiply(&[0x55; KEY_LEN], Some(&key)).ok_or(KeyError::LowOrder)?;
        Ok(PublicKey(*key))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Base64::encode_string(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// A secret that two boxes share besides their keys, so that what is recorded stays secret even if
/// X25519 is broken one day. Overwritten when dropped, and never shown but by
/// [`PresharedKey::to_text`].
#[derive(Clone)]
pub struct PresharedKey(Zeroizing<[u8; KEY_LEN]>);

impl PresharedKey {
    /// A key from `seed`: 32 bytes from the operating system, used for nothing else.
    pub fn generate(seed: &Seed) -> Self {
        PresharedKey(generate(seed))
    }

    /// The text of the key file: the kind, and the base64.
    pub fn to_text(&self) -> Zeroizing<String> {
        text_of(PRESHARED, &self.0)
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl FromStr for PresharedKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        base64_of(text, PRESHARED, (PRIVATE, KeyError::Private)).and_then(read).map(PresharedKey)
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_back_as_the_key() {
        let private = PrivateKey::generate(&Seed::new([3; 32]));
        let text = private.to_text();
        let base64 = text.lines().nth(1).unwrap();
        assert_eq!(base64.len(), KEY_TEXT_LEN);
        for text in [&*text, base64, &format!(" {base64}\n"), &text.replace('\n', "\r\n")] {
            assert_eq!(text.parse::<PrivateKey>().unwrap().public(), private.public(), "{text}");
        }
        assert_eq!(private.public().to_string().parse::<PublicKey>(), Ok(private.public()));
        let other = PrivateKey::generate(&Seed::new([4; 32]));
        assert_ne!(other.public(), private.public());
    }

    #[test]
    fn the_kinds_of_secrets_are_distinguished() {
        let private = PrivateKey::generate(&Seed::new([3; 32])).to_text();
        let shared = PresharedKey::generate(&Seed::new([3; 32])).to_text();
        assert!(private.parse::<PrivateKey>().is_ok() && shared.parse::<PresharedKey>().is_ok());
        assert_eq!(private.parse::<PresharedKey>().unwrap_err(), KeyError::Private);
        assert_eq!(shared.parse::<PrivateKey>().unwrap_err(), KeyError::Preshared);
        let unknown = private.replace("private", "other").parse::<PrivateKey>();
        assert!(matches!(unknown, Err(KeyError::Length { .. })));
    }

    /// RFC 7748, section 6.1.
    #[test]
    fn public_keys_are_those_of_x25519() {
        let alice = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=".parse::<PrivateKey>().unwrap();
        assert_eq!(alice.public().to_string(), "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=");
    }

    #[test]
    fn what_is_no_key_is_told_apart() {
        let short = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo".parse::<PrivateKey>();
        assert_eq!(short.unwrap_err(), KeyError::Length { len: 43 });
        let wrong = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LC!=".parse::<PublicKey>();
        assert_eq!(wrong.unwrap_err(), KeyError::Encoding);
        let long = "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCoA".parse::<PublicKey>();
        assert_eq!(long.unwrap_err(), KeyError::Encoding);
        let blank = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".parse::<PresharedKey>();
        assert_eq!(blank.unwrap_err(), KeyError::Blank);
        // The point of order 2 is 0, which is blank; that with u = 1 has order 4.
        let low = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=".parse::<PublicKey>();
        assert_eq!(low.unwrap_err(), KeyError::LowOrder);
        for error in
            [KeyError::Length { len: 43 }, KeyError::Encoding, KeyError::Blank, KeyError::LowOrder]
        {
            assert!(error.to_string().contains(':'), "cause and cure: {error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let private = PrivateKey::generate(&Seed::new([3; 32]));
        let shared = PresharedKey::generate(&Seed::new([3; 32]));
        assert_eq!(
            format!("{private:?} {shared:?} {:?}", Seed::new([3; 32])),
            "PrivateKey(secret) PresharedKey(secret) Seed(secret)"
        );
    }
}
