//! The numbers of ROPs ([MS-OXCROPS] §2.2.2, RopIds).

#![allow(missing_docs)]

pub const RELEASE: u8 = 0x01;
pub const OPEN_FOLDER: u8 = 0x02;
pub const OPEN_MESSAGE: u8 = 0x03;
pub const GET_HIERARCHY_TABLE: u8 = 0x04;
pub const GET_CONTENTS_TABLE: u8 = 0x05;
pub const CREATE_MESSAGE: u8 = 0x06;
pub const GET_PROPERTIES_SPECIFIC: u8 = 0x07;
pub const GET_PROPERTIES_ALL: u8 = 0x08;
pub const GET_PROPERTIES_LIST: u8 = 0x09;
pub const SET_PROPERTIES: u8 = 0x0a;
pub const DELETE_PROPERTIES: u8 = 0x0b;
pub const SAVE_CHANGES_MESSAGE: u8 = 0x0c;
pub const READ_RECIPIENTS: u8 = 0x0f;
pub const RELOAD_CACHED_INFORMATION: u8 = 0x10;
pub const SET_COLUMNS: u8 = 0x12;
pub const SORT_TABLE: u8 = 0x13;
pub const RESTRICT: u8 = 0x14;
pub const QUERY_ROWS: u8 = 0x15;
pub const GET_STATUS: u8 = 0x16;
pub const QUERY_POSITION: u8 = 0x17;
pub const SEEK_ROW: u8 = 0x18;
pub const GET_ATTACHMENT_TABLE: u8 = 0x21;
pub const OPEN_ATTACHMENT: u8 = 0x22;
pub const CREATE_ATTACHMENT: u8 = 0x23;
pub const SAVE_CHANGES_ATTACHMENT: u8 = 0x25;
pub const GET_RECEIVE_FOLDER: u8 = 0x27;
pub const REGISTER_NOTIFICATION: u8 = 0x29;
pub const NOTIFY: u8 = 0x2a;
pub const OPEN_STREAM: u8 = 0x2b;
pub const READ_STREAM: u8 = 0x2c;
pub const WRITE_STREAM: u8 = 0x2d;
pub const SEEK_STREAM: u8 = 0x2e;
pub const SET_STREAM_SIZE: u8 = 0x2f;
pub const SUBMIT_MESSAGE: u8 = 0x32;
pub const QUERY_COLUMNS_ALL: u8 = 0x37;
pub const COPY_TO: u8 = 0x39;
pub const COPY_TO_STREAM: u8 = 0x3a;
pub const CLONE_STREAM: u8 = 0x3b;
pub const GET_PERMISSIONS_TABLE: u8 = 0x3e;
pub const GET_RULES_TABLE: u8 = 0x3f;
pub const LONG_TERM_ID_FROM_ID: u8 = 0x43;
pub const ID_FROM_LONG_TERM_ID: u8 = 0x44;
pub const OPEN_EMBEDDED_MESSAGE: u8 = 0x46;
pub const TRANSPORT_SEND: u8 = 0x4a;
pub const SOURCE_COPY_MESSAGES: u8 = 0x4b;
pub const SOURCE_COPY_FOLDER: u8 = 0x4c;
pub const SOURCE_COPY_TO: u8 = 0x4d;
pub const SOURCE_GET_BUFFER: u8 = 0x4e;
pub const GET_VALID_ATTACHMENTS: u8 = 0x52;
pub const DESTINATION_CONFIGURE: u8 = 0x53;
pub const DESTINATION_PUT_BUFFER: u8 = 0x54;
pub const GET_NAMES_FROM_IDS: u8 = 0x55;
pub const GET_IDS_FROM_NAMES: u8 = 0x56;
pub const COMMIT_STREAM: u8 = 0x5d;
pub const GET_STREAM_SIZE: u8 = 0x5e;
pub const GET_RECEIVE_FOLDER_TABLE: u8 = 0x68;
pub const SOURCE_COPY_PROPERTIES: u8 = 0x69;
pub const PENDING: u8 = 0x6e;
pub const SYNC_CONFIGURE: u8 = 0x70;
pub const GET_STORE_STATE: u8 = 0x7b;
pub const SYNC_OPEN_COLLECTOR: u8 = 0x7e;
pub const RESET_TABLE: u8 = 0x81;
pub const SYNC_GET_TRANSFER_STATE: u8 = 0x82;
pub const LOGON: u8 = 0xfe;
pub const BUFFER_TOO_SMALL: u8 = 0xff;

/// True for ROPs that read, open or release, so that data which was read ahead through another
/// handle stays valid. All others may change something.
#[must_use]
pub fn is_harmless(id: u8) -> bool {
    matches!(
        id,
        RELEASE
            | OPEN_FOLDER
            | OPEN_MESSAGE
            | GET_HIERARCHY_TABLE
            | GET_CONTENTS_TABLE
            | GET_PROPERTIES_SPECIFIC
            | GET_PROPERTIES_ALL
            | GET_PROPERTIES_LIST
            | READ_RECIPIENTS
            | SET_COLUMNS
            | SORT_TABLE
            | RESTRICT
            | QUERY_ROWS
            | GET_STATUS
            | QUERY_POSITION
            | SEEK_ROW
            | GET_ATTACHMENT_TABLE
            | OPEN_ATTACHMENT
            | GET_RECEIVE_FOLDER
            | REGISTER_NOTIFICATION
            | OPEN_STREAM
            | READ_STREAM
            | SEEK_STREAM
            | QUERY_COLUMNS_ALL
            | CLONE_STREAM
            | GET_PERMISSIONS_TABLE
            | GET_RULES_TABLE
            | LONG_TERM_ID_FROM_ID
            | ID_FROM_LONG_TERM_ID
            | OPEN_EMBEDDED_MESSAGE
            | SOURCE_COPY_MESSAGES
            | SOURCE_COPY_FOLDER
            | SOURCE_COPY_TO
            | SOURCE_GET_BUFFER
            | SOURCE_COPY_PROPERTIES
            | GET_VALID_ATTACHMENTS
            | GET_NAMES_FROM_IDS
            | GET_IDS_FROM_NAMES
            | GET_STREAM_SIZE
            | GET_RECEIVE_FOLDER_TABLE
            | SYNC_CONFIGURE
            | GET_STORE_STATE
            | RESET_TABLE
            | LOGON
    )
}
