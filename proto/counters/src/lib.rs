//! Declares counters and drop reasons: type, name, value and description come from one list.
//!
//! [`counters!`] declares a struct of free-running counts, [`drops!`] the reasons for which frames
//! are dropped with a count of each, and [`events!`] counts by name in which drops are among other
//! events. Doc comments are the descriptions, and reports and metrics take them from `NAMES` and
//! `meaning`. Iterators list everything in the order of declaration, zeros included.
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
        $crate::named! {
            $(#[$attribute])*
            pub enum DropReason { $($(#[doc = $doc])+ $variant = $name,)* }
        }

        $crate::counts! {
            /// Frames dropped, by reason.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct Drops by DropReason;
        }

        impl Drops {
            /// Frames dropped for any reason.
            pub fn total(&self) -> u64 {
                self.0.iter().sum()
            }
        }
    };
}

/// Declares an enum `DropReason`, an enum `Counter` of these reasons and of other events, and
/// `Counters` with one count for each. The drop reasons come first.
///
/// ```
/// longhaul_counters::events! {
///     /// Why the device dropped a packet.
///     pub enum DropReason {
///         /// No QP has the number.
///         NoQp = "rx_no_qp",
///     }
///     /// What the device counts.
///     pub enum Counter {
///         /// Frames received.
///         RxFrames = "rx_frames",
///     }
/// }
/// let mut counters = Counters::default();
/// counters.add(Counter::RxFrames, 2);
/// counters.count(DropReason::NoQp);
/// let counts: Vec<_> = counters.iter().map(|(counter, count)| (counter.name(), count)).collect();
/// assert_eq!(counts, [("rx_no_qp", 1), ("rx_frames", 2)]);
/// assert_eq!((counters.get(Counter::NoQp), counters.drops()), (1, 1));
/// ```
#[macro_export]
macro_rules! events {
    (
        $(#[$drop_attribute:meta])*
        pub enum DropReason {
            $($(#[doc = $drop_doc:literal])+ $drop:ident = $drop_name:literal,)*
        }
        $(#[$attribute:meta])*
        pub enum Counter {
            $($(#[doc = $doc:literal])+ $event:ident = $name:literal,)*
        }
    ) => {
        $crate::named! {
            $(#[$drop_attribute])*
            pub enum DropReason { $($(#[doc = $drop_doc])+ $drop = $drop_name,)* }
        }

        $crate::named! {
            $(#[$attribute])*
            pub enum Counter {
                $($(#[doc = $drop_doc])+ $drop = $drop_name,)*
                $($(#[doc = $doc])+ $event = $name,)*
            }
        }

        impl From<DropReason> for Counter {
            #[inline]
            fn from(reason: DropReason) -> Counter {
                match reason { $(DropReason::$drop => Counter::$drop,)* }
            }
        }

        $crate::counts! {
            /// One free-running count per [`Counter`].
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct Counters by Counter;
        }

        impl Counters {
            /// Packets dropped for any reason.
            pub fn drops(&self) -> u64 {
                DropReason::ALL.iter().map(|&reason| self.get(reason)).sum()
            }
        }
    };
}

/// Declares an enum whose variants have names and descriptions.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    (
        $(#[$attribute:meta])*
        pub enum $Name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)* }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $Name {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl $Name {
            /// All of them, in the order of declaration.
            pub const ALL: &'static [$Name] = &[$($Name::$variant,)*];

            /// The name in metrics and reports.
            pub const fn name(self) -> &'static str {
                match self { $($Name::$variant => $name,)* }
            }

            /// Its description.
            pub const fn meaning(self) -> &'static str {
                match self { $($Name::$variant => concat!($($doc),+).trim_ascii(),)* }
            }
        }
    };
}

/// Declares a struct with one free-running count for each variant of an enum.
#[doc(hidden)]
#[macro_export]
macro_rules! counts {
    ($(#[$attribute:meta])* pub struct $Counts:ident by $Name:ident;) => {
        $(#[$attribute])*
        pub struct $Counts([u64; $Name::ALL.len()]);

        impl Default for $Counts {
            fn default() -> Self {
                $Counts([0; $Name::ALL.len()])
            }
        }

        impl $Counts {
            /// Adds one.
            #[inline]
            pub fn count(&mut self, what: impl Into<$Name>) {
                self.add(what, 1);
            }

            /// Adds `n`.
            #[inline]
            pub fn add(&mut self, what: impl Into<$Name>, n: u64) {
                let count = &mut self.0[what.into() as usize];
                *count = count.wrapping_add(n);
            }

            /// The count.
            #[inline]
            pub fn get(&self, what: impl Into<$Name>) -> u64 {
                self.0[what.into() as usize]
            }

            /// Each with its count, zeros included.
            pub fn iter(&self) -> impl Iterator<Item = ($Name, u64)> + '_ {
                $Name::ALL.iter().map(|&what| (what, self.get(what)))
            }
        }
    };
}
