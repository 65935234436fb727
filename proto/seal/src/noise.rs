//! The handshake: Noise IKpsk2 with X25519, ChaCha20-Poly1305 and BLAKE2s (noiseprotocol.org,
//! revision 34), by `snow`.
//!
//! The caller provides the randomness. Keys are returned raw, because another library seals the
//! datagrams at line rate.

use crate::cipher::Preference;
use crate::format::{NOISE_INIT_LEN, NOISE_RESPONSE_LEN, Terms};
use crate::keys::{KEY_LEN, PresharedKey, PrivateKey, PublicKey};
use longhaul_secret::{SecretRng, Seed};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};
use zeroize::Zeroizing;

const PATTERN: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
/// Position of the pre-shared key in IKpsk2.
const PSK_AT: usize = 2;

/// Keys of both directions, as the handshake derives them.
pub(crate) struct Keys {
    pub(crate) to_responder: Zeroizing<[u8; KEY_LEN]>,
    pub(crate) to_initiator: Zeroizing<[u8; KEY_LEN]>,
}

impl Keys {
    fn of(state: &mut HandshakeState) -> Self {
        let (to_responder, to_initiator) = state.dangerously_get_raw_split();
        Keys {
            to_responder: Zeroizing::new(to_responder),
            to_initiator: Zeroizing::new(to_initiator),
        }
    }
}

/// Draws one handshake's randomness from its own seed.
struct Seeded(Seed);

struct Stream(SecretRng);

impl Random for Stream {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Error> {
        self.0.fill(out);
        Ok(())
    }
}

impl CryptoResolver for Seeded {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Stream(SecretRng::new(&self.0))))
    }
    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }
    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }
    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

fn builder(seed: Seed) -> Option<Builder<'static>> {
    Some(Builder::with_resolver(PATTERN.parse().ok()?, Box::new(Seeded(seed))))
}

/// Without a pre-shared key, 32 zero bytes are used, as in WireGuard.
fn psk(shared: Option<&PresharedKey>) -> Zeroizing<[u8; KEY_LEN]> {
    Zeroizing::new(shared.map_or([0; KEY_LEN], |key| *key.bytes()))
}

/// The initiator's state.
pub(crate) struct Initiator {
    state: Box<HandshakeState>,
    /// A response has failed authentication.
    has_refused: bool,
}

impl Initiator {
    /// Starts a handshake with the box that has the key `far`; `bound` is authenticated as the
    /// prologue. `None` if `far` is an invalid key.
    pub(crate) fn begin(
        own: &PrivateKey,
        far: &PublicKey,
        shared: Option<&PresharedKey>,
        seed: Seed,
        bound: &[u8],
        terms: Terms,
    ) -> Option<(Self, [u8; NOISE_INIT_LEN])> {
        let builder = builder(seed)?.prologue(bound).ok()?;
        let builder =
            builder.local_private_key(own.bytes()).ok()?.remote_public_key(&far.0).ok()?;
        let mut state = builder.build_initiator().ok()?;
        state.set_psk(PSK_AT, &*psk(shared)).ok()?;
        let mut message = [0; NOISE_INIT_LEN];
        let len = state.write_message(&terms.write(), &mut message).ok()?;
        let initiator = Initiator { state: Box::new(state), has_refused: false };
        (len == NOISE_INIT_LEN).then_some((initiator, message))
    }

    /// Processes the response. `None` if it is not the far box's response to this handshake; the
    /// true one may still arrive.
    pub(crate) fn finish(&mut self, message: &[u8; NOISE_RESPONSE_LEN]) -> Option<(Keys, Terms)> {
        let read = self.read(message);
        self.has_refused |= read.is_none();
        read
    }

    fn read(&mut self, message: &[u8; NOISE_RESPONSE_LEN]) -> Option<(Keys, Terms)> {
        let mut terms = [0; NOISE_RESPONSE_LEN];
        let len = self.state.read_message(message, &mut terms).ok()?;
        let terms = terms.first_chunk().filter(|_| len == Terms::LEN)?;
        Some((Keys::of(&mut self.state), Terms::read(terms)))
    }

    /// True if a response has failed authentication: the far box has another pre-shared key, or
    /// somebody on the path has forged it.
    pub(crate) fn has_refused(&self) -> bool {
        self.has_refused
    }
}

/// The responder's state after it has read the first message.
pub(crate) struct Responder {
    state: Box<HandshakeState>,
    /// Public key of the initiator, proven to have the private key.
    pub(crate) who: PublicKey,
    pub(crate) ciphers: Preference,
}

impl Responder {
    /// Reads a first message. `None` if its sender does not know this box's key, or bound it to
    /// something else than `bound`.
    pub(crate) fn read(
        own: &PrivateKey,
        seed: Seed,
        bound: &[u8],
        message: &[u8; NOISE_INIT_LEN],
    ) -> Option<Self> {
        let builder = builder(seed)?.prologue(bound).ok()?.local_private_key(own.bytes()).ok()?;
        let mut state = builder.build_responder().ok()?;
        let mut terms = [0; NOISE_INIT_LEN];
        let len = state.read_message(message, &mut terms).ok()?;
        let terms = Terms::read(terms.first_chunk().filter(|_| len == Terms::LEN)?);
        let who = PublicKey(*state.get_remote_static()?.first_chunk()?);
        Some(Responder { state: Box::new(state), who, ciphers: terms.ciphers })
    }

    /// Builds the response, with `terms`.
    pub(crate) fn answer(
        mut self,
        shared: Option<&PresharedKey>,
        terms: Terms,
    ) -> Option<(Keys, [u8; NOISE_RESPONSE_LEN])> {
        self.state.set_psk(PSK_AT, &*psk(shared)).ok()?;
        let mut message = [0; NOISE_RESPONSE_LEN];
        let len = self.state.write_message(&terms.write(), &mut message).ok()?;
        (len == NOISE_RESPONSE_LEN).then(|| (Keys::of(&mut self.state), message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u8) -> PrivateKey {
        PrivateKey::generate(&Seed::new([n; 32]))
    }

    const TERMS: Terms = Terms { ciphers: Preference([1, 2]) };

    #[test]
    fn both_ends_come_to_the_same_keys() {
        let shared = PresharedKey::generate(&Seed::new([9; 32]));
        let (near, far) = (key(1), key(2));
        let (mut initiator, init) = Initiator::begin(
            &near,
            &far.public(),
            Some(&shared),
            Seed::new([3; 32]),
            b"bound",
            TERMS,
        )
        .unwrap();
        let responder = Responder::read(&far, Seed::new([4; 32]), b"bound", &init).unwrap();
        assert_eq!((responder.who, responder.ciphers), (near.public(), TERMS.ciphers));
        let (theirs, response) = responder.answer(Some(&shared), TERMS).unwrap();
        // A forged response does not invalidate the true one.
        let mut forged = response;
        forged[50] ^= 1;
        assert!(initiator.finish(&forged).is_none());
        assert!(initiator.finish(&[0x77; NOISE_RESPONSE_LEN]).is_none());
        let (ours, terms) = initiator.finish(&response).unwrap();
        assert_eq!(terms, TERMS);
        assert_eq!(*ours.to_initiator, *theirs.to_initiator);
        assert_eq!(*ours.to_responder, *theirs.to_responder);
        assert_ne!(*ours.to_responder, *ours.to_initiator);
    }

    #[test]
    fn another_key_secret_or_address_ends_it() {
        let shared = PresharedKey::generate(&Seed::new([9; 32]));
        let (near, far) = (key(1), key(2));
        let begin = || {
            Initiator::begin(
                &near,
                &far.public(),
                Some(&shared),
                Seed::new([3; 32]),
                b"bound",
                TERMS,
            )
            .unwrap()
        };
        let (mut initiator, init) = begin();
        let seed = || Seed::new([4; 32]);
        assert!(Responder::read(&key(5), seed(), b"bound", &init).is_none());
        assert!(Responder::read(&far, seed(), b"bouns", &init).is_none());
        let responder = Responder::read(&far, seed(), b"bound", &init).unwrap();
        let (_, response) = responder.answer(None, TERMS).unwrap();
        assert!(initiator.finish(&response).is_none());
    }

    /// A handshake of two boxes with these pre-shared keys: the first message, the response, and
    /// the keys that the initiator derives.
    fn agree(shared: Option<&PresharedKey>) -> ([u8; NOISE_INIT_LEN], Keys) {
        let (near, far) = (key(1), key(2));
        let (mut initiator, init) =
            Initiator::begin(&near, &far.public(), shared, Seed::new([3; 32]), b"bound", TERMS)
                .unwrap();
        let responder = Responder::read(&far, Seed::new([4; 32]), b"bound", &init).unwrap();
        let (_, response) = responder.answer(shared, TERMS).unwrap();
        (init, initiator.finish(&response).unwrap().0)
    }

    #[test]
    fn what_was_recorded_stays_closed_to_who_gets_the_private_keys_later() {
        let (init, keys) = agree(None);
        // The responder's private key reveals the initiator's identity and no more: the ephemeral
        // keys are gone.
        let later = Responder::read(&key(2), Seed::new([5; 32]), b"bound", &init).unwrap();
        assert_eq!(later.who, key(1).public());
        let (guessed, _) = later.answer(None, TERMS).unwrap();
        assert_ne!(*guessed.to_responder, *keys.to_responder);
        assert_ne!(*guessed.to_initiator, *keys.to_initiator);
        // Nor does the initiator's private key recover the keys of the first message.
        let begun =
            Initiator::begin(&key(1), &key(2).public(), None, Seed::new([6; 32]), b"bound", TERMS);
        assert_ne!(begun.unwrap().1, init);
    }

    #[test]
    fn keys_depend_on_the_preshared_key_too() {
        let [one, other] = [60, 61].map(|n| PresharedKey::generate(&Seed::new([n; 32])));
        // All X25519 secrets are the same in each: an attacker that knows them still lacks the
        // pre-shared key.
        let all = [agree(None), agree(Some(&one)), agree(Some(&other))];
        let seen: Vec<_> = all.iter().map(|(init, _)| *init).collect();
        assert!(seen.iter().all(|init| *init == seen[0]));
        for (at, (_, keys)) in all.iter().enumerate() {
            for (_, others) in &all[..at] {
                assert_ne!(*keys.to_responder, *others.to_responder);
                assert_ne!(*keys.to_initiator, *others.to_initiator);
            }
        }
    }
}
