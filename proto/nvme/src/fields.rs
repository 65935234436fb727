//! Little-endian fields of fixed layouts.

/// The `M` bytes at `at`; bytes beyond the end are 0.
pub(crate) fn array<const M: usize>(bytes: &[u8], at: usize) -> [u8; M] {
    std::array::from_fn(|i| bytes.get(at + i).copied().unwrap_or(0))
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Copies `value` to `at`, as far as it fits.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(to) = bytes.get_mut(at..) {
        let len = to.len().min(value.len());
        to[..len].copy_from_slice(&value[..len]);
    }
}

/// Copies ASCII text to the `len` bytes at `at`, padded with spaces.
pub(crate) fn put_text(bytes: &mut [u8], at: usize, len: usize, text: &str) {
    for i in 0..len {
        put(bytes, at + i, &[text.as_bytes().get(i).copied().unwrap_or(b' ')]);
    }
}

/// ASCII text up to a NUL or the end, without trailing spaces; other bytes become `?`.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let printable = |byte: &u8| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '?' };
    let text: String = bytes[..end].iter().map(printable).collect();
    text.trim_end().to_owned()
}
