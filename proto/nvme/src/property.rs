//! Controller properties.

/// A controller property, by its offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Property {
    /// CAP, 8 bytes.
    Capabilities,
    /// VS, 4 bytes.
    Version,
    /// CC, 4 bytes.
    Configuration,
    /// CSTS, 4 bytes.
    Status,
}

impl Property {
    /// The property at `offset`; `None` for those that this implementation does not have.
    #[must_use]
    pub const fn at(offset: u32) -> Option<Self> {
        Some(match offset {
            0x00 => Property::Capabilities,
            0x08 => Property::Version,
            0x14 => Property::Configuration,
            0x1c => Property::Status,
            _ => return None,
        })
    }

    /// Offset.
    #[must_use]
    pub const fn offset(self) -> u32 {
        match self {
            Property::Capabilities => 0x00,
            Property::Version => 0x08,
            Property::Configuration => 0x14,
            Property::Status => 0x1c,
        }
    }

    /// Value of the attribute field: 0 for 4 bytes, 1 for 8.
    #[must_use]
    pub const fn size_code(self) -> u32 {
        matches!(self, Property::Capabilities) as u32
    }
}

/// CAP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Entries of the largest queue, 1 to 65536.
    pub entries_max: u32,
    /// Longest time until a controller is ready, in units of 500 ms.
    pub ready_within: u8,
}

impl Capabilities {
    /// From the property.
    #[must_use]
    pub const fn read(value: u64) -> Self {
        Capabilities { entries_max: (value & 0xffff) as u32 + 1, ready_within: (value >> 24) as u8 }
    }

    /// The property: contiguous queues, the NVM command set, pages of 4 KiB.
    #[must_use]
    pub const fn write(self) -> u64 {
        let entries = self.entries_max.saturating_sub(1) as u64 & 0xffff;
        entries | 1 << 16 | (self.ready_within as u64) << 24 | 1 << 37
    }
}

/// CC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Configuration(pub u32);

impl Configuration {
    /// The NVM command set, pages of 4 KiB, entries of 64 and 16 bytes, enabled.
    pub const ENABLED: Configuration = Configuration(1 | 6 << 16 | 4 << 20);

    /// EN.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// SHN is not 0.
    #[must_use]
    pub const fn shuts_down(self) -> bool {
        self.0 >> 14 & 3 != 0
    }

    /// True if command set, page size and entry sizes are those that fabrics and this
    /// implementation have.
    #[must_use]
    pub const fn is_supported(self) -> bool {
        let command_set_and_page = self.0 >> 4 & 0x7f;
        let entries = self.0 >> 16 & 0xff;
        command_set_and_page == 0 && entries == (6 | 4 << 4)
    }

    /// The same, shutting down.
    #[must_use]
    pub const fn shutting_down(self) -> Self {
        Configuration(self.0 | 1 << 14)
    }
}

/// CSTS.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    pub(crate) const DISABLED: ControllerStatus = ControllerStatus(0);
    pub(crate) const READY: ControllerStatus = ControllerStatus(1);
    pub(crate) const FATAL: ControllerStatus = ControllerStatus(2);
    pub(crate) const SHUTTING_DOWN: ControllerStatus = ControllerStatus(1 | 1 << 2);
    pub(crate) const SHUT_DOWN: ControllerStatus = ControllerStatus(1 | 2 << 2);

    /// RDY.
    #[must_use]
    pub const fn is_ready(self) -> bool {
        self.0 & 1 != 0
    }

    /// CFS.
    #[must_use]
    pub const fn is_fatal(self) -> bool {
        self.0 & 2 != 0
    }

    /// Shutdown processing is complete.
    #[must_use]
    pub const fn is_shut_down(self) -> bool {
        self.0 >> 2 & 3 == 2
    }
}
