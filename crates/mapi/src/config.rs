//! The settings of the accelerator, and its limits.

/// The operator's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapiSettings {
    /// True if flows of MAPI are followed. By default they are reduced and carried like any other.
    pub is_on: bool,
    /// Server ports of the mailbox interfaces where they are fixed. Dynamic ones are learnt from the
    /// endpoint mapper.
    pub ports: Vec<u16>,
    /// Server ports at which mailboxes answer MAPI over HTTP without TLS, such as behind a balancer
    /// that ends it.
    pub http_ports: Vec<u16>,
    /// True if the content of sealed sessions may be in the dictionary.
    pub may_store_decrypted: bool,
}

/// Fixed ports that the configuration may name: a server has one for each of three interfaces, and a
/// site few servers with other ones.
pub(crate) const PORTS_MAX: usize = 64;
