//! Declares counters and drop reasons: type, name, value and description come from one list.
//!
//! [`counters!`] declares a struct of free-running counts, [`drops!`] the reasons for which frames
//! are dropped with a count of each. Doc comments are the descriptions, and reports and metrics
//! take them from `NAMES` and `meaning`. Iterators list everything, zeros included.
#![forbid(unsafe_code)]

/// Declares a struct of `u64` counters with their names and descriptions.
///
/// Fields after `;` have a type of their own and are not listed: drops by reason, gauges.
///
/// ```
/// longhaul_counters::counters! {
///     /// Counts of a port.
///     pub struct Counters {
///         /// Frames received.
///         rx_frames,
///         /// Frames sent.
///         tx_frames,
///         ;
///         /// The longest frame, in bytes.
///         longest: u32,
///     }
/// }
/// let counters = Counters { tx_frames: 2, ..Counters::default() };
/// assert_eq!(Counters::NAMES[0], ("rx_frames", "Frames received."));
/// assert_eq!(counters.values().collect::<Vec<_>>(), [("rx_frames", 0), ("tx_frames", 2)]);
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        pub struct $Counters:ident {
            $($(#[doc = $doc:literal])+ $name:ident,)*
            $(; $($(#[doc = $other_doc:literal])+ $other:ident: $Other:ty,)*)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $Counters {
            $($(#[doc = $doc])+ pub $name: u64,)*
            $($($(#[doc = $other_doc])+ pub $other: $Other,)*)?
        }

        impl $Counters {
            /// Name and description of each counter, in the order of `values`.
            pub const NAMES: &'static [(&'static str, &'static str)] =
                &[$((stringify!($name), concat!($($doc),+).trim_ascii()),)*];

            /// Name and value of each counter.
            pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

/// Declares an enum `DropReason`, and `Drops` with one count for each reason.
///
/// ```
/// longhaul_counters::drops! {
///     /// Why the port dropped a frame.
///     pub enum DropReason {
///         /// Longer than a slot.
///         TooLong = "too_long",
///         /// No peer is connected.
///         LinkDown = "link_down",
///     }
/// }
/// let mut drops = Drops::default();
/// drops.count(DropReason::LinkDown);
/// let counts: Vec<_> = drops.iter().map(|(reason, count)| (reason.name(), count)).collect();
/// assert_eq!(counts, [("too_long", 0), ("link_down", 1)]);
/// assert_eq!((drops.get(DropReason::LinkDown), drops.total()), (1, 1));
/// assert_eq!(DropReason::TooLong.meaning(), "Longer than a slot.");
/// ```
#[macro_export]
macro_rules! drops {
    (
        $(#[$attribute:meta])*
        pub enum DropReason {
            $($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl DropReason {
            /// All reasons, in the order of declaration.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)*];

            /// The name in metrics and reports.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)* }
            }

            /// Its description.
            pub const fn meaning(self) -> &'static str {
                match self { $(DropReason::$variant => concat!($($doc),+).trim_ascii(),)* }
            }
        }

        /// Frames dropped, by reason.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Drops([u64; DropReason::ALL.len()]);

        impl Drops {
            /// Counts one dropped frame.
            #[inline]
            pub const fn count(&mut self, reason: DropReason) {
                self.0[reason as usize] += 1;
            }

            /// Frames dropped for `reason`.
            #[inline]
            pub const fn get(&self, reason: DropReason) -> u64 {
                self.0[reason as usize]
            }

            /// Frames dropped for any reason.
            pub fn total(&self) -> u64 {
                self.0.iter().sum()
            }

            /// Each reason with its count, zeros included.
            pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
                DropReason::ALL.iter().map(|&reason| (reason, self.get(reason)))
            }
        }
    };
}
