# The image of raas_receiver. The context is a directory of deploy/bundle with certificates.pem, the CAs to trust:
#
#   docker build -f deploy/images/raas_receiver.Dockerfile --build-arg VERSION=$(cat VERSION) CONTEXT
#
# No shell is in it, and the root file system may be read-only. Volumes, writable for the user: /run/raas-receiver for
# sockets, and a memory volume for root. A hook command needs an image that has its programs.
FROM scratch
ARG VERSION
LABEL org.opencontainers.image.title="lockstep-raas-receiver"
LABEL org.opencontainers.image.description="Keeps replicas of a trainer's weights for inference engines"
LABEL org.opencontainers.image.licenses="Apache-2.0"
LABEL org.opencontainers.image.version=$VERSION
COPY lib /lib/
COPY loader/raas_receiver /lib64/ld-linux-x86-64.so.2
COPY licenses /usr/share/doc/lockstep/
COPY certificates.pem /etc/ssl/certs/ca-certificates.crt
COPY program/raas_receiver program/lockstepctl /usr/bin/
ENV PATH=/usr/bin
USER 10001:10001
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s CMD ["lockstepctl", "--receiver", "unix:/run/raas-receiver/control.sock", "--quiet", "health", "liveness"]
ENTRYPOINT ["raas_receiver"]
