//! Big-endian integers, like the kernel's `__be16`, `__be32` and `__be64`.
//!
//! The headers use the annotation for GUIDs, immediate data, LIDs and ports; distinct types prevent
//! storing a host-order value there by accident.

use crate::macros::CAbi;

macro_rules! big_endian {
    ($($(#[$meta:meta])* $name:ident($raw:ty);)*) => { $(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name($raw);

        impl $name {
            /// Stores a host-order value.
            #[must_use]
            pub const fn new(value: $raw) -> Self {
                Self(value.to_be())
            }

            /// The value in host order.
            #[must_use]
            pub const fn get(self) -> $raw {
                <$raw>::from_be(self.0)
            }

            /// Takes the in-memory representation, as read from the C side.
            #[must_use]
            pub const fn from_memory(raw: $raw) -> Self {
                Self(raw)
            }

            /// The in-memory representation, as C code sees it.
            #[must_use]
            pub const fn memory(self) -> $raw {
                self.0
            }
        }

        // SAFETY: a transparent wrapper of an integer; zero is valid.
        unsafe impl CAbi for $name {
            #[cfg(test)]
            fn c_type() -> String {
                stringify!($name).to_owned()
            }
        }
    )* };
}

big_endian! {
    /// A 16-bit integer in network byte order.
    __be16(u16);
    /// A 32-bit integer in network byte order.
    __be32(u32);
    /// A 64-bit integer in network byte order.
    __be64(u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_the_most_significant_byte_first() {
        assert_eq!(__be16::new(0x1234).memory().to_ne_bytes(), [0x12, 0x34]);
        assert_eq!(__be32::new(0x0102_0304).memory().to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!(__be64::new(1).memory().to_ne_bytes(), [0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn returns_what_was_stored() {
        assert_eq!(__be32::new(0xdead_beef).get(), 0xdead_beef);
        assert_eq!(__be32::from_memory(__be32::new(7).memory()).get(), 7);
    }
}
