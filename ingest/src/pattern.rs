//! Bytes that a receiver can check without the sender's data.

/// First word of a message's pattern; each word adds [`STEP`].
fn first_word(stream: u32, window: u64, slot: u32) -> u64 {
    // SplitMix64's finalizer (Steele, Lea, Flood, 2014).
    let mut word = (u64::from(stream) << 32 | u64::from(slot)) ^ window.rotate_left(20);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Fills a message.
pub fn fill(message: &mut [u8], stream: u32, window: u64, slot: u32) {
    let mut word = first_word(stream, window, slot);
    for piece in message.chunks_mut(8) {
        piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
        word = word.wrapping_add(STEP);
    }
}

/// Whether [`fill`] wrote these bytes.
#[must_use]
pub fn matches(message: &[u8], stream: u32, window: u64, slot: u32) -> bool {
    let mut word = first_word(stream, window, slot);
    message.chunks(8).all(|piece| {
        let is_same = *piece == word.to_le_bytes()[..piece.len()];
        word = word.wrapping_add(STEP);
        is_same
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_matches_its_own_place_only() {
        let mut message = [0; 1003];
        fill(&mut message, 3, 1 << 40, 9);
        assert!(matches(&message, 3, 1 << 40, 9));
        assert!(!matches(&message, 4, 1 << 40, 9) && !matches(&message, 3, 1, 9));
        assert!(!matches(&message, 3, 1 << 40, 10));
        message[1002] ^= 1;
        assert!(!matches(&message, 3, 1 << 40, 9));
    }
}
